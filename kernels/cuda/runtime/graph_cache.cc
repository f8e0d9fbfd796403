// See graph_cache.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/graph_cache.h"

#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/launch.h"

namespace fulcrum::cuda {

GraphCache::Key GraphCache::KeyOf(const Launch& launch, uint64_t variant) {
  Key key = {static_cast<uint64_t>(launch.m) << 8 | static_cast<uint64_t>(launch.output_type),
             variant};
  for (const LaunchTarget& target : launch.targets) {
    key.push_back(reinterpret_cast<uintptr_t>(target.arm));
    key.push_back(static_cast<const CudaWeight*>(target.weight)->serial());
  }
  return key;
}

GraphCache::Entry& GraphCache::Touch(const Key& key) {
  const auto found = where_.find(key);
  if (found != where_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->second;
  }
  if (entries_.size() >= capacity_) {
    where_.erase(entries_.back().first);
    entries_.pop_back();
  }
  entries_.emplace_front(key, Entry());
  where_.emplace(key, entries_.begin());
  return entries_.front().second;
}

void GraphCache::Clear() {
  where_.clear();
  entries_.clear();
}

absl::StatusOr<GraphExec> Capture(int device, cudaStream_t stream,
                                  absl::FunctionRef<absl::Status()> enqueue) {
  // Thread-local: what other threads do meanwhile, allocations too, does not disturb the capture.
  if (absl::Status s = CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                                  "cudaStreamBeginCapture");
      !s.ok()) {
    return s;
  }
  absl::Status status = enqueue();
  cudaGraph_t graph = nullptr;
  status.Update(CudaStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  cudaGraphExec_t raw = nullptr;
  if (status.ok()) {
    status = CudaStatus(cudaGraphInstantiate(&raw, graph, 0), "cudaGraphInstantiate");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok()) return status;
  GraphExec exec(device, raw);
  if (absl::Status s = CudaStatus(cudaGraphUpload(raw, stream), "cudaGraphUpload"); !s.ok()) {
    return s;
  }
  return exec;
}

}  // namespace fulcrum::cuda

// The buffers of one batch in flight on a CUDA device, and two ways to copy them. Direct: kernels
// on the compute stream copy in and out, which is fastest for a small batch without others in
// flight. Overlapped: copy engines work on the slot's own stream beside the kernels of another
// slot. The backend (run.cc) selects the way and the compute stream. The steps of a way are called
// in the order of their declaration.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/host/stream.h"
#include "kernels/cuda/runtime/copies.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/timeline.h"

namespace fulcrum::cuda {

class CudaSlot : public LaunchSlot {
 public:
  explicit CudaSlot(int device) : device_(device), graphs_(kGraphs) {}

  absl::Status Reserve(size_t activation_bytes, std::span<const size_t> output_bytes) override;
  uint16_t* activations() override { return reinterpret_cast<uint16_t*>(host_activations_.data()); }
  std::byte* output(size_t target) override { return outputs_[target].host.data(); }

  // INTERNAL when the launch is larger than what was reserved: the caller's bug.
  absl::Status Check(const Launch& launch) const;
  // First step of both ways: makes room for padded rows and for a library's extra rows. With
  // host_outputs, arms store into host memory where WritesToHost says so.
  absl::Status Prepare(const Launch& launch, bool host_outputs, bool alone);
  // Bytes that are copied between host and device.
  size_t CopiedBytes(const Launch& launch) const;
  // Where the arm of target i stores.
  std::byte* arm_output(size_t target) const {
    const Output& output = outputs_[target];
    return output.by_arm ? output.host.data() : output.device.data();
  }
  // Rows that the arm of target i may store: the launch's rows and ArmArgs::output_room.
  int OutputRoom(const Launch& launch, size_t target) const;
  // The key of the launch's captured graph; different graphs have different keys.
  GraphCache::Key GraphKey(const Launch& launch) const;

  // Direct. EnqueueIn and EnqueueOut enqueue the same operations for every launch of the same
  // weights and M, so a captured graph can contain them. ExpectOutputs must precede their
  // execution.
  void ExpectOutputs(const Launch& launch);
  absl::Status EnqueueIn(const Launch& launch, bool programmatic, cudaStream_t stream);
  absl::Status EnqueueOut(const Launch& launch, bool programmatic, cudaStream_t stream);
  // Errors as of AwaitEmpty. Device faults are detected on `compute`.
  absl::StatusOr<LaunchTimes> AwaitOutputs(cudaStream_t compute, absl::Duration limit);

  // Overlapped. Times are of the host's clock, one or two microseconds late: a time stamp of the
  // device would stall the compute stream. AwaitIn is optional. BeginKernels returns true when the
  // activations were copied already, so that `compute` need not wait for them. EndKernels follows
  // the kernels in the stream.
  absl::Status CopyIn(const Launch& launch);
  absl::Status AwaitIn(absl::Duration limit);
  absl::StatusOr<bool> BeginKernels(cudaStream_t compute);
  absl::Status EndKernels(cudaStream_t compute);
  absl::Status CopyOut(const Launch& launch);
  // `number`: this launch's number in `timeline`.
  absl::StatusOr<LaunchTimes> Finish(Timeline& timeline, uint64_t number, absl::Duration limit);

  GraphCache& graphs() { return graphs_; }
  cudaStream_t stream() const { return stream_.get(); }
  const uint16_t* device_activations() const {
    return reinterpret_cast<const uint16_t*>(device_activations_.data());
  }

 private:
  struct Output {
    PinnedBuffer host;
    DeviceBuffer device;
    bool by_arm = false;  // of the launch at hand
  };
  // What the copy out reports to the host.
  struct Report {
    Stamps stamps;
    unsigned long long done[kMaxDoneFlags];
  };
  // Enough for every layer of a large model at one M. A graph of three kernels takes 115 KiB on the
  // device and 33 KiB of host memory (H200, driver 580).
  static constexpr size_t kGraphs = 512;

  absl::Status Open();
  OutCopy CopyOutOf(const Launch& launch) const;
  Report& report() { return *reinterpret_cast<Report*>(report_.data()); }

  const int device_;
  Stream stream_;
  Event in_done_, kernel_done_, out_done_;
  // Times of an overlapped launch, as its thread saw them.
  Timeline::Time begin_, enqueued_;
  std::optional<Timeline::Time> in_time_;
  bool copies_out_ = false;
  PinnedBuffer host_activations_;
  DeviceBuffer device_activations_;
  std::vector<Output> outputs_;
  DeviceBuffer stamps_;
  PinnedBuffer report_;
  int expected_flags_ = 0;
  GraphCache graphs_;
};

// Whether a launch is faster when the arm stores an output of `bytes` bytes directly into host
// memory than when the output is copied there. alone: no other launch is in flight.
bool WritesToHost(const Arm& arm, size_t bytes, bool alone);

}  // namespace fulcrum::cuda

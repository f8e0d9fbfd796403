// Buffers of one batch in flight on a CUDA device and the two ways to move them. Direct: kernels on
// the compute stream copy in and out, quickest for a small batch that is alone. Overlapped: the
// copy engines work on the slot's own stream beside another slot's kernels. Which of them when is
// the backend's choice, as is the compute stream; each way's steps are called in the order
// declared.
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
  // Before either way: room for padded rows and for a library's; with host_outputs, the arms store
  // into host memory where WritesToHost.
  absl::Status Prepare(const Launch& launch, bool host_outputs, bool alone);
  // Bytes that are copied between host and device.
  size_t CopiedBytes(const Launch& launch) const;
  // Where target i's arm stores.
  std::byte* arm_output(size_t target) const {
    const Output& output = outputs_[target];
    return output.by_arm ? output.host.data() : output.device.data();
  }
  // Rows that target i's arm may store, the launch's and those of ArmArgs::output_room.
  int OutputRoom(const Launch& launch, size_t target) const;
  // As an arm's launches are captured: changes with what the graph's nodes are.
  GraphCache::Key GraphKey(const Launch& launch) const;

  // Direct. What EnqueueIn and EnqueueOut put into the stream is the same for every launch of the
  // same weights and M, so it can be a part of a captured graph; ExpectOutputs comes before it
  // runs.
  void ExpectOutputs(const Launch& launch);
  absl::Status EnqueueIn(const Launch& launch, bool programmatic, cudaStream_t stream);
  absl::Status EnqueueOut(const Launch& launch, bool programmatic, cudaStream_t stream);
  // Errors as AwaitEmpty's. Faults are looked for in `compute`.
  absl::StatusOr<LaunchTimes> AwaitOutputs(cudaStream_t compute, absl::Duration limit);

  // Overlapped. Times are the host's, a microsecond or two late: a time of the device's would stall
  // the compute stream. AwaitIn may be left out. BeginKernels is true when the activations were
  // there already, so that `compute` was not made to wait for them; EndKernels comes after the
  // kernels were put into it.
  absl::Status CopyIn(const Launch& launch);
  absl::Status AwaitIn(absl::Duration limit);
  absl::StatusOr<bool> BeginKernels(cudaStream_t compute);
  absl::Status EndKernels(cudaStream_t compute);
  absl::Status CopyOut(const Launch& launch);
  // `number`: of this launch in `timeline`.
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
  // What the host is told by the copy out.
  struct Report {
    Stamps stamps;
    unsigned long long done[kMaxDoneFlags];
  };
  // Every layer of a large model at one M. A graph of three kernels takes 115 KiB on the device and
  // 33 KiB of the host (H200, driver 580).
  static constexpr size_t kGraphs = 512;

  absl::Status Open();
  OutCopy CopyOutOf(const Launch& launch) const;
  Report& report() { return *reinterpret_cast<Report*>(report_.data()); }

  const int device_;
  Stream stream_;
  Event in_done_, kernel_done_, out_done_;
  // Of an overlapped launch, as its thread saw them.
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

// Whether a launch takes less when the arm stores an output of so many bytes into host memory than
// when it is copied there. alone: no other launch is in flight.
bool WritesToHost(const Arm& arm, size_t bytes, bool alone);

}  // namespace fulcrum::cuda

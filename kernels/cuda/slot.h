// Buffers of one batch in flight on a CUDA device, its copy stream and its clock. The backend calls
// the steps of a launch in the order they are declared here; the compute stream is the backend's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/stream.h"

namespace fulcrum::cuda {

class CudaSlot : public LaunchSlot {
 public:
  explicit CudaSlot(int device) : device_(device) {}

  absl::Status Reserve(size_t activation_bytes, std::span<const size_t> output_bytes) override;
  uint16_t* activations() override { return reinterpret_cast<uint16_t*>(host_activations_.data()); }
  std::byte* output(size_t target) override { return outputs_[target].host.data(); }

  // INTERNAL when the launch is larger than what was reserved: the caller's bug.
  absl::Status Check(const Launch& launch) const;
  // Enqueues the activations, padded as launch.h wants them.
  absl::Status CopyIn(const Launch& launch);
  // What `compute` is given between the two runs after the copy in, and before the copy out.
  absl::Status BeginKernels(cudaStream_t compute);
  absl::Status EndKernels(cudaStream_t compute);
  // Enqueues the outputs' way back.
  absl::Status CopyOut(const Launch& launch);
  // Waits for all of it by spinning: a sleeping thread wakes up later than a launch takes.
  absl::StatusOr<LaunchTimes> Finish();

  // After a failed step: waits until nothing that was enqueued here uses the buffers.
  void Drain();

  const uint16_t* device_activations() const {
    return reinterpret_cast<const uint16_t*>(device_activations_.data());
  }
  std::byte* device_output(size_t target) const { return outputs_[target].device.data(); }

 private:
  struct Output {
    PinnedBuffer host;
    DeviceBuffer device;
  };
  enum Moment { kInBegin, kInEnd, kKernelBegin, kKernelEnd, kOutBegin, kOutEnd, kMoments };

  absl::Status MakeStreamAndEvents();
  absl::Status Record(Moment moment, cudaStream_t stream);
  absl::StatusOr<double> Seconds(Moment begin, Moment end) const;

  const int device_;
  Stream stream_;
  std::array<Event, kMoments> events_;
  PinnedBuffer host_activations_;
  DeviceBuffer device_activations_;
  std::vector<Output> outputs_;
};

}  // namespace fulcrum::cuda

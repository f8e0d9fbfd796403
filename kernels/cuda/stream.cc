// See stream.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stream.h"

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/launch.h"

namespace fulcrum::cuda {

absl::StatusOr<Stream> MakeStream(int device, Priority priority) {
  if (absl::Status s = SetDevice(device); !s.ok()) return s;
  int least = 0, greatest = 0;
  if (absl::Status s = CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                  "cudaDeviceGetStreamPriorityRange");
      !s.ok()) {
    return s;
  }
  cudaStream_t raw = nullptr;
  if (absl::Status s = CudaStatus(
          cudaStreamCreateWithPriority(&raw, cudaStreamNonBlocking,
                                       priority == Priority::kLaunches ? greatest : least),
          "cudaStreamCreateWithPriority");
      !s.ok()) {
    return s;
  }
  return Stream(device, raw);
}

absl::StatusOr<Event> MakeEvent(int device, EventKind kind) {
  if (absl::Status s = SetDevice(device); !s.ok()) return s;
  const unsigned flags =
      kind == EventKind::kOrder
          ? static_cast<unsigned>(cudaEventDisableTiming)
          : static_cast<unsigned>(cudaEventBlockingSync | cudaEventDisableTiming);
  cudaEvent_t raw = nullptr;
  if (absl::Status s =
          CudaStatus(cudaEventCreateWithFlags(&raw, flags), "cudaEventCreateWithFlags");
      !s.ok()) {
    return s;
  }
  return Event(device, raw);
}

absl::Status WaitQuietly(const Stream& stream, const Event& event) {
  if (absl::Status s = CudaStatus(cudaEventRecord(event.get(), stream.get()), "cudaEventRecord");
      !s.ok()) {
    return s;
  }
  return CudaStatus(cudaEventSynchronize(event.get()), "cudaEventSynchronize");
}

}  // namespace fulcrum::cuda

// See stream.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/host/stream.h"

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/device_memory.h"

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

absl::Status WaitQuietly(const Stream& stream, const Event& event, absl::Duration limit) {
  if (absl::Status s = CudaStatus(cudaEventRecord(event.get(), stream.get()), "cudaEventRecord");
      !s.ok()) {
    return s;
  }
  return WaitQuietly(event, limit);
}

absl::Status WaitQuietly(const Event& event, absl::Duration limit) {
  constexpr auto kSleep = std::chrono::microseconds(50);
  const auto last = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
  while (true) {
    const absl::StatusOr<bool> ended = Ended(event.get());
    if (!ended.ok()) return ended.status();
    if (*ended) return absl::OkStatus();
    if (std::chrono::steady_clock::now() > last) {
      GiveUp(event.device());
      return absl::UnavailableError(absl::StrCat("cuda:", event.device(), ": no answer within ",
                                                 absl::FormatDuration(limit), "; given up"));
    }
    std::this_thread::sleep_for(kSleep);
  }
}

}  // namespace fulcrum::cuda

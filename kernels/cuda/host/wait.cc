// See wait.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/host/wait.h"

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/cuda_status.h"

namespace fulcrum::cuda {
namespace {

using Clock = std::chrono::steady_clock;

absl::StatusOr<bool> AsAnswer(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  if (error != cudaErrorNotReady) return CudaStatus(error, call);
  cudaGetLastError();  // "not ready" is kept as if it were an error
  return false;
}

}  // namespace

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

absl::Status Await(absl::FunctionRef<absl::StatusOr<bool>()> done,
                   absl::FunctionRef<absl::Status()> look, absl::Duration limit) {
  constexpr int kAsksBetweenClocks = 32;
  constexpr auto kBetweenLooks = std::chrono::milliseconds(1);
  constexpr auto kSpin = std::chrono::milliseconds(2);
  constexpr auto kSleep = std::chrono::microseconds(20);
  const Clock::time_point begin = Clock::now();
  const Clock::time_point last = begin + absl::ToChronoNanoseconds(limit);
  Clock::time_point looked = begin;
  for (int asks = 1;; ++asks) {
    const absl::StatusOr<bool> answer = done();
    if (!answer.ok()) return answer.status();
    if (*answer) return absl::OkStatus();
    Pause();
    if (asks % kAsksBetweenClocks != 0) continue;
    const Clock::time_point now = Clock::now();
    if (now > last) {
      return absl::DeadlineExceededError(
          absl::StrCat("no answer within ", absl::FormatDuration(limit)));
    }
    if (now - looked > kBetweenLooks) {
      looked = now;
      if (absl::Status s = look(); !s.ok()) return s;
    }
    if (now - begin > kSpin) std::this_thread::sleep_for(kSleep);
  }
}

absl::StatusOr<bool> Ended(cudaStream_t stream) {
  return AsAnswer(cudaStreamQuery(stream), "cudaStreamQuery");
}
absl::StatusOr<bool> Ended(cudaEvent_t event) {
  return AsAnswer(cudaEventQuery(event), "cudaEventQuery");
}

absl::Status AwaitEmpty(cudaStream_t stream, absl::Duration limit) {
  return Await([&] { return Ended(stream); }, [] { return absl::OkStatus(); }, limit);
}

}  // namespace fulcrum::cuda

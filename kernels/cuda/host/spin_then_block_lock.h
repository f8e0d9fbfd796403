// A scoped lock that spins before it blocks. For mutexes that are held for microseconds by threads
// that spin anyway: waking a blocked thread takes longer than the mutex is held.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/host/wait.h"

namespace fulcrum::cuda {

class ABSL_SCOPED_LOCKABLE SpinThenBlockLock {
 public:
  explicit SpinThenBlockLock(absl::Mutex* mutex)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS : mutex_(mutex) {
    // Longer than all slots together hold the mutex.
    constexpr auto kSpin = std::chrono::microseconds(100);
    const auto last = std::chrono::steady_clock::now() + kSpin;
    while (!mutex->TryLock()) {
      if (std::chrono::steady_clock::now() > last) {
        mutex->Lock();
        return;
      }
      for (int i = 0; i < 8; ++i) Pause();
    }
  }
  ~SpinThenBlockLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  SpinThenBlockLock(const SpinThenBlockLock&) = delete;
  SpinThenBlockLock& operator=(const SpinThenBlockLock&) = delete;

 private:
  absl::Mutex* const mutex_;
};

}  // namespace fulcrum::cuda

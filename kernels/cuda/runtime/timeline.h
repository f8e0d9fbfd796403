// When the launches on one compute stream ended, as the threads that wait for them saw it. A launch
// whose input was there began when the one before it ended, so no event with a time, which stalls
// the stream, is needed to tell computing from queueing. Thread-safe.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace fulcrum::cuda {

class Timeline {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The number of a launch that is put into the stream now, from 1.
  uint64_t Next() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return ++last_;
  }

  void Ended(uint64_t number, Time time) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ends_[number % ends_.size()] = {.number = number, .time = time};
  }

  // When a launch began whose input was there at `ready` and which ended at `end`: `ready`, or the
  // end of the launch before it when that is known and later.
  Time Began(uint64_t number, Time ready, Time end) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const End& before = ends_[(number - 1) % ends_.size()];
    return before.number == number - 1 ? std::max(ready, std::min(before.time, end)) : ready;
  }

 private:
  struct End {
    uint64_t number = 0;
    Time time;
  };
  mutable absl::Mutex mutex_;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::array<End, 128> ends_ ABSL_GUARDED_BY(mutex_);  // twice as many as slots can be
};

}  // namespace fulcrum::cuda

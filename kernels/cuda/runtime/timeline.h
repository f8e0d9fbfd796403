// The end times of launches on one compute stream, as the waiting threads saw them. A launch whose
// input is ready begins when the launch before it ends. So computing and queueing can be told apart
// without events with times, which stall the stream. Thread-safe.
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

  // The number, from 1, of the launch that is enqueued now.
  uint64_t Next() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return ++last_;
  }

  void Ended(uint64_t number, Time time) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ends_[number % ends_.size()] = {.number = number, .time = time};
  }

  // The begin of a launch whose input was ready at `ready` and which ended at `end`: `ready`, or
  // the end of the launch before it if that is known and later.
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

// The only source of time in the scheduler: tests hold it still.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace fulcrum {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const { return absl::Now(); }
  // Waits on `cv` until it is signalled or Now() may have reached `until`; the caller looks again.
  virtual void Wait(absl::Mutex& mu, absl::CondVar& cv, absl::Time until) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    cv.WaitWithDeadline(&mu, until);
  }
};

}  // namespace fulcrum

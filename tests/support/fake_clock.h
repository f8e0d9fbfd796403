// A clock that stands still until a test moves it. Who waits for a time waits for the test, so "it
// decided to wait until T" can be observed and "nothing happened" needs no sleep.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/clock.h"

namespace fulcrum::test {

class FakeClock : public Clock {
 public:
  absl::Time Now() const override {
    absl::MutexLock lock(&mu_);
    return now_;
  }

  void Wait(absl::Mutex& mu, absl::CondVar& cv, absl::Time until) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    {
      absl::MutexLock lock(&mu_);
      if (until <= now_) return;
      sleepers_.push_back({&mu, &cv, until});
      changed_.SignalAll();
    }
    cv.Wait(&mu);
    absl::MutexLock lock(&mu_);
    sleepers_.erase(std::find(sleepers_.begin(), sleepers_.end(), Sleeper{&mu, &cv, until}));
  }

  void Advance(absl::Duration by) {
    std::vector<Sleeper> due;
    {
      absl::MutexLock lock(&mu_);
      now_ += by;
      for (const Sleeper& sleeper : sleepers_) {
        if (sleeper.until <= now_) due.push_back(sleeper);
      }
    }
    for (const Sleeper& sleeper : due) {
      sleeper.mu->Lock();  // it is then really waiting
      sleeper.mu->Unlock();
      sleeper.cv->SignalAll();
    }
  }

  // Blocks until so many threads wait for exactly this time.
  void AwaitSleeper(absl::Time until, int threads = 1) const {
    absl::MutexLock lock(&mu_);
    while (std::count_if(sleepers_.begin(), sleepers_.end(),
                         [&](const Sleeper& s) { return s.until == until; }) < threads) {
      changed_.Wait(&mu_);
    }
  }

 private:
  struct Sleeper {
    absl::Mutex* mu;
    absl::CondVar* cv;
    absl::Time until;
    friend bool operator==(const Sleeper&, const Sleeper&) = default;
  };
  mutable absl::Mutex mu_;
  mutable absl::CondVar changed_;
  absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::FromUnixSeconds(1000);
  mutable std::vector<Sleeper> sleepers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fulcrum::test

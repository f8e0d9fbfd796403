// Something that happens once. As absl::Notification, but always through a mutex, whose ordering
// ThreadSanitizer is shown (tests/tsan); the library's lock-free path it cannot see.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace fulcrum::test {

class Event {
 public:
  void Notify() {
    absl::MutexLock lock(&mu_);
    happened_ = true;
    changed_.SignalAll();
  }
  bool HasBeenNotified() const {
    absl::MutexLock lock(&mu_);
    return happened_;
  }
  void WaitForNotification() const {
    absl::MutexLock lock(&mu_);
    while (!happened_) changed_.Wait(&mu_);
  }

 private:
  mutable absl::Mutex mu_;
  mutable absl::CondVar changed_;
  bool happened_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace fulcrum::test

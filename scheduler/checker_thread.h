// What the checkers (auditor.h, shadow.h) share: a queue of jobs with one thread behind everything
// that serves, and a stream of random numbers. What a job is, and which are dropped, is theirs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/numerics/splitmix.h"
#include "scheduler/exceptions.h"

namespace fulcrum {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return SplitMix(state_ += kSplitMixStep); }
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

// Linux gives each thread its own niceness; where this fails the checks only run at normal
// priority. Against threads that serve at niceness 0 it gets a tenth of a core: enough for a
// canary's first batches to be graded on a machine that is busy with serving.
inline void LowerPriority() {
  constexpr int kNiceness = 10;
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
}

// Runs one job after another, in the order in which they came. Thread-safe. Who owns one declares
// it last: the thread runs from construction on.
template <class Job>
class CheckerThread {
 public:
  // Something to do once in a while between jobs; none without an interval above zero.
  struct Chore {
    absl::Duration every = absl::ZeroDuration();
    std::function<void()> run = {};
  };

  // name: what `top -H` shows, 15 characters at most. `caught` is told of what `run` and the chore
  // threw: that job is given up, the next one runs.
  CheckerThread(
      const char* name, std::function<void(const Job&)> run, Chore chore = {},
      std::function<void(const absl::Status&)> caught = [](const absl::Status&) {})
      : run_(std::move(run)),
        chore_(std::move(chore)),
        caught_(std::move(caught)),
        thread_([this] { KeepRunning([this] { Loop(); }, caught_); }) {
    (void)pthread_setname_np(thread_.native_handle(), name);
  }
  ~CheckerThread() { Stop(); }
  CheckerThread(const CheckerThread&) = delete;
  CheckerThread& operator=(const CheckerThread&) = delete;

  void Add(Job job) {
    absl::MutexLock lock(&mu_);
    pending_.push_back(std::move(job));
    wake_.Signal();
  }
  // Jobs that wait; the one that runs is not among them.
  size_t pending() const {
    absl::MutexLock lock(&mu_);
    return pending_.size();
  }
  // Blocks until every job added so far was run and let go.
  void Flush() {
    absl::MutexLock lock(&mu_);
    while (!pending_.empty() || running_) idle_.Wait(&mu_);
  }
  // Ends the thread behind the job that runs; returns those that never will. By the owner alone.
  std::deque<Job> Stop() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      wake_.Signal();
    }
    if (thread_.joinable()) thread_.join();
    absl::MutexLock lock(&mu_);
    return std::exchange(pending_, {});
  }

 private:
  void Loop() {
    LowerPriority();
    absl::Time next_chore = NextChore();
    for (;;) {
      Job job;
      bool have_job = false;
      {
        absl::MutexLock lock(&mu_);
        while (!stopping_ && pending_.empty() && absl::Now() < next_chore) {
          wake_.WaitWithDeadline(&mu_, next_chore);
        }
        if (stopping_) return;
        if (!pending_.empty()) {
          job = std::move(pending_.front());
          pending_.pop_front();
          have_job = running_ = true;
        }
      }
      if (have_job) {
        Guard([&] { run_(job); });
        job = Job();  // lets go of what it holds before anyone is told
        absl::MutexLock lock(&mu_);
        running_ = false;
        if (pending_.empty()) idle_.SignalAll();
      }
      if (absl::Now() >= next_chore) {
        Guard(chore_.run);
        next_chore = NextChore();
      }
    }
  }
  template <class Body>
  void Guard(Body&& body) {
    const absl::Status thrown = Caught(body);
    if (!thrown.ok()) (void)Caught([&] { caught_(thrown); });
  }
  absl::Time NextChore() const {
    return chore_.every > absl::ZeroDuration() ? absl::Now() + chore_.every
                                               : absl::InfiniteFuture();
  }

  const std::function<void(const Job&)> run_;
  const Chore chore_;
  const std::function<void(const absl::Status&)> caught_;
  mutable absl::Mutex mu_;
  std::deque<Job> pending_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::CondVar wake_;  // the thread should look
  absl::CondVar idle_;  // nothing is pending
  std::thread thread_;
};

}  // namespace fulcrum

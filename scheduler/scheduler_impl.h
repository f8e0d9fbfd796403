// The scheduler's state, and which thread may touch what of it. scheduler.cc has what other threads
// call, scheduler_loops.cc the threads of its own. One lock guards what waits; it is never held
// while a call is gathered, launched or completed.
//
// Exceptions: a step that may allocate does so before it changes anything, so that one that throws
// has changed nothing; what a thread took out is finished by that thread whatever happens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/device_queue.h"
#include "scheduler/executor.h"
#include "scheduler/scheduler.h"
#include "scheduler/waiting_room.h"

namespace fulcrum {

class Scheduler::Impl {
 public:
  Impl(const std::vector<Backend*>& backends, LeverStore& levers, Observer& observer,
       Checkers checkers, const Clock& clock, SchedulerOptions options);
  ~Impl();

  absl::Status Submit(std::shared_ptr<Call>& call, OnIdle on_idle);
  CallPlace Cancel(const Call* call, LeaveBy by);
  void Hurry();
  void Drain(absl::Duration patience);
  void SetPaused(bool paused);
  std::vector<DeviceLiveness> Liveness() const;
  int64_t queued_rows() const { return room_.rows(); }
  int64_t inflight_calls() const {
    absl::MutexLock lock(&mu_);
    return inflight_;
  }

 private:
  struct Device {
    Device(Backend& b, int s, Observer& observer, Checkers checkers, const Clock& clock)
        : backend(b), slots(s), caller_executor(b, observer, checkers, clock) {}
    Backend& backend;
    const int slots;      // batches launched at a time
    absl::CondVar work;   // signalled when a free slot should look again
    DeviceQueue queue;    // guarded by mu_, as all below
    int launching = 0;    // at most `slots`
    int64_t waiting = 0;  // calls in `queue`
    int slot_loops = 0, ended_slot_loops = 0;
    absl::Time last_launch = absl::InfinitePast();  // end of the last that succeeded
    absl::Time moved;          // when a launch last ended, or the first work came
    Executor caller_executor;  // used by the thread that set caller_runs_
  };
  // A call that waited and leaves without having run.
  struct Refused {
    TakenCall taken;
    Refusal why;
  };

  void SlotLoop(Device& device, Executor& executor);
  void ExpiryLoop();
  std::optional<Refusal> WhyNotTaken(const Device& device, const Call& call, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Blocks until there is a batch to run or a call to refuse; false when the slot should end. What
  // it took is the caller's to finish, also when it throws.
  bool NextBatch(Device& device, Batch& batch, std::vector<Refused>& refused)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the batch that a free slot would run now, if any; returns when to look again.
  absl::Time TakeBatch(Device& device, absl::Time now, Batch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs a batch that was taken, to its last reply; throws nothing.
  void RunBatch(Device& device, Executor& executor, Batch& batch) ABSL_LOCKS_EXCLUDED(mu_);
  // Refuses what can no longer run on the device, appending to `refused`.
  void Sweep(Device& device, absl::Time now, std::vector<Refused>& refused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(Device& device, Waiting* waiting, LeaveBy by, absl::Time now,
              std::vector<Refused>& refused) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A call stops waiting: out of the sums.
  void Unlist(Device& device, Call& call, CallPlace place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Completes refused calls; throws nothing.
  void Complete(std::vector<Refused>& refused) ABSL_LOCKS_EXCLUDED(mu_);
  // `count` pieces of work that were busy are over. Their thread's last use of the scheduler, if
  // another may drain it. `flag`, if given, is cleared with it.
  void EndBusy(int64_t count, bool* flag = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return inflight_ == 0 && busy_ == 0; }
  void SignalAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  LeverStore& levers_;
  Observer& observer_;
  const Clock& clock_;
  const SchedulerOptions options_;
  absl::flat_hash_map<const Backend*, std::unique_ptr<Device>>
      devices_;  // fixed when threads start

  WaitingRoom room_;  // changed under mu_, read anywhere
  mutable absl::Mutex mu_;
  uint64_t next_seq_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t inflight_ ABSL_GUARDED_BY(mu_) = 0;  // submitted and not yet handed to Complete
  int64_t busy_ ABSL_GUARDED_BY(mu_) = 0;      // batches that run, calls that are being refused
  bool hurrying_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool expiry_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool caller_runs_ ABSL_GUARDED_BY(mu_) = false;  // a thread runs a batch within Submit
  absl::CondVar idle_;                             // signalled when Idle() becomes true
  absl::CondVar expiry_;  // signalled when a deadline comes before the expiry thread's alarm
  absl::Time alarm_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();

  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::thread> threads_;
  std::shared_ptr<LeverStore::Subscription> lever_changes_;
};

}  // namespace fulcrum

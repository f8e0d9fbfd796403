// Admission, the choice of the next batch, and the slot threads. One lock guards what waits; it is
// never held while a call is gathered, launched or completed. See scheduler.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/device_queue.h"
#include "scheduler/executor.h"
#include "scheduler/waiting_room.h"

namespace fulcrum {
namespace {

// A call that waited and leaves without having run.
struct Refused {
  TakenCall taken;
  absl::Status status;
  std::optional<RejectReason> reason;
};

}  // namespace

class Scheduler::Impl {
 public:
  Impl(const std::vector<Backend*>& backends, LeverStore& levers, Observer& observer,
       Checkers checkers, const Clock& clock, SchedulerOptions options);
  ~Impl();

  absl::Status Submit(std::shared_ptr<Call>& call, OnIdle on_idle);
  void Cancel(const Call* call);
  void Drain(absl::Duration patience);
  void SetPaused(bool paused);
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
    const int slots;           // batches launched at a time
    absl::CondVar work;        // signalled when a free slot should look again
    DeviceQueue queue;         // guarded by mu_
    int launching = 0;         // guarded by mu_; at most `slots`
    Executor caller_executor;  // used by the thread that set caller_runs_
  };

  void SlotLoop(Device& device, Executor& executor);
  void ExpiryLoop();
  std::optional<Refusal> WhyNotTaken(const Call& call, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Blocks until there is something to run; false when the slot should end.
  bool NextBatch(Device& device, Batch& batch);
  // Takes the batch that a free slot would run now, if any; returns when to look again.
  absl::Time TakeBatch(Device& device, absl::Time now, Batch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunBatch(Device& device, Executor& executor, Batch& batch) ABSL_LOCKS_EXCLUDED(mu_);
  // Refuses what can no longer run on the device, appending to `refused`.
  void Sweep(Device& device, absl::Time now, std::vector<Refused>& refused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(Device& device, Waiting* waiting, absl::Status status,
              std::optional<RejectReason> reason, std::vector<Refused>& refused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A call stops waiting: out of the index and the sums.
  void Unlist(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Completes refused calls, then counts down `busy_`, which the caller had raised.
  void Complete(std::vector<Refused>& refused) ABSL_LOCKS_EXCLUDED(mu_);
  // The thread's last use of the scheduler. `flag`, if given, is cleared with it.
  void EndBusy(bool* flag = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return inflight_ == 0 && busy_ == 0; }

  LeverStore& levers_;
  Observer& observer_;
  const Clock& clock_;
  const SchedulerOptions options_;
  absl::flat_hash_map<const Backend*, std::unique_ptr<Device>>
      devices_;  // fixed when threads start

  WaitingRoom room_;  // changed under mu_, read anywhere
  mutable absl::Mutex mu_;
  absl::flat_hash_map<const Call*, Waiting*> waiting_ ABSL_GUARDED_BY(mu_);
  uint64_t next_seq_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t inflight_ ABSL_GUARDED_BY(mu_) = 0;  // submitted and not yet handed to Complete
  int64_t busy_ ABSL_GUARDED_BY(mu_) = 0;      // threads that run a batch or complete calls
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool caller_runs_ ABSL_GUARDED_BY(mu_) = false;  // a thread runs a batch within Submit
  absl::CondVar idle_;                             // signalled when Idle() becomes true
  absl::CondVar expiry_;  // signalled when a deadline comes before the expiry thread's alarm
  absl::Time alarm_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();

  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::thread> threads_;
  std::shared_ptr<LeverStore::Subscription> lever_changes_;
};

Scheduler::Impl::Impl(const std::vector<Backend*>& backends, LeverStore& levers, Observer& observer,
                      Checkers checkers, const Clock& clock, SchedulerOptions options)
    : levers_(levers),
      observer_(observer),
      clock_(clock),
      options_(options),
      room_(options.max_queue_rows, options.max_queue_bytes, observer) {
  for (Backend* backend : backends) {
    const int slots =
        options_.slots_per_device > 0 ? options_.slots_per_device : backend->preferred_slots();
    devices_[backend] =
        std::make_unique<Device>(*backend, std::max(slots, 1), observer, checkers, clock);
  }
  for (const auto& [backend, device] : devices_) {
    for (int i = 0; i < device->slots + 1; ++i) {
      executors_.push_back(std::make_unique<Executor>(device->backend, observer, checkers, clock));
      threads_.emplace_back(
          [this, d = device.get(), e = executors_.back().get()] { SlotLoop(*d, *e); });
    }
  }
  threads_.emplace_back([this] { ExpiryLoop(); });
  lever_changes_ = levers_.Subscribe([this](const LeverEvent&) {
    absl::MutexLock lock(&mu_);
    for (const auto& [backend, device] : devices_) device->work.SignalAll();
  });
}

Scheduler::Impl::~Impl() {
  Drain(absl::ZeroDuration());
  lever_changes_.reset();
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (const auto& [backend, device] : devices_) device->work.SignalAll();
    expiry_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::Status Scheduler::Impl::Submit(std::shared_ptr<Call>& call, OnIdle on_idle) {
  assert(call != nullptr && !call->shards.empty() && call->rows > 0);
  const auto it = devices_.find(call->shards.front()->backend);
  if (it == devices_.end()) {
    return absl::InternalError(absl::StrFormat("shard %s is on a device that is not scheduled",
                                               call->shards.front()->name));
  }
  Device& device = *it->second;
  if (!device.backend.healthy()) return DeviceLost(device.backend);
  std::optional<Refusal> refusal;
  Batch here;  // what this thread is to run
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = clock_.Now();
    refusal = WhyNotTaken(*call, now);
    if (!refusal) {
      const CallSide side = SideOf(levers_.View(), *call);
      const Call& c = *call;
      room_.Enter(c);
      ++inflight_;
      const bool run_here = on_idle == OnIdle::kRunHere && c.step == Step::kDecode &&
                            !caller_runs_ && device.queue.empty();
      waiting_[&c] = device.queue.Add(std::move(call), now, next_seq_++, side);
      call = nullptr;
      if (run_here) TakeBatch(device, now, here);
      if (here.calls.empty()) {
        if (c.deadline < alarm_) expiry_.Signal();
        device.work.Signal();
      } else {
        caller_runs_ = true;
      }
    }
  }
  if (refusal) {
    observer_.OnReject(refusal->reason);
    return std::move(refusal->status);
  }
  room_.Report();
  if (!here.calls.empty()) {
    RunBatch(device, device.caller_executor, here);
    EndBusy(&caller_runs_);
  }
  return absl::OkStatus();
}

std::optional<Refusal> Scheduler::Impl::WhyNotTaken(const Call& call, absl::Time now) const {
  if (draining_) {
    return Refusal{absl::UnavailableError("the node is draining; call another node"),
                   RejectReason::kDraining};
  }
  if (call.deadline <= now) return Refusal{Expired(absl::ZeroDuration()), RejectReason::kExpired};
  return room_.WhyNoRoom(call);
}

void Scheduler::Impl::Cancel(const Call* call) {
  std::vector<Refused> refused;
  {
    absl::MutexLock lock(&mu_);
    const auto it = waiting_.find(call);
    if (it == waiting_.end()) return;
    Device& device = *devices_.at(call->shards.front()->backend);
    Refuse(device, it->second, absl::CancelledError("the caller cancelled in stage queue"),
           RejectReason::kCancelled, refused);
    ++busy_;
  }
  Complete(refused);
}

void Scheduler::Impl::Drain(absl::Duration patience) {
  std::vector<Refused> refused;
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    for (const auto& [backend, device] : devices_) device->work.SignalAll();
    const absl::Time until = clock_.Now() + patience;
    while (!Idle() && clock_.Now() < until) clock_.Wait(mu_, idle_, until);
    for (const auto& [backend, device] : devices_) {
      while (!device->queue.empty()) {
        Refuse(*device, device->queue.MostUrgent(),
               absl::UnavailableError("the node drained before the call ran; call another node"),
               RejectReason::kDraining, refused);
      }
    }
    ++busy_;
  }
  Complete(refused);
  absl::MutexLock lock(&mu_);
  while (!Idle()) idle_.Wait(&mu_);
}

void Scheduler::Impl::SetPaused(bool paused) {
  absl::MutexLock lock(&mu_);
  paused_ = paused;
  for (const auto& [backend, device] : devices_) device->work.SignalAll();
}

void Scheduler::Impl::Unlist(const Call& call) {
  waiting_.erase(&call);
  room_.Leave(call);
}

void Scheduler::Impl::Refuse(Device& device, Waiting* waiting, absl::Status status,
                             std::optional<RejectReason> reason, std::vector<Refused>& refused) {
  TakenCall taken = device.queue.Remove(waiting);
  Unlist(*taken.call);
  --inflight_;
  refused.push_back({std::move(taken), std::move(status), reason});
}

void Scheduler::Impl::Sweep(Device& device, absl::Time now, std::vector<Refused>& refused) {
  const bool lost = !device.queue.empty() && !device.backend.healthy();
  for (Waiting* next = device.queue.MostUrgent(); next != nullptr;
       next = device.queue.MostUrgent()) {
    if (next->call->deadline <= now) {
      Refuse(device, next, Expired(now - next->submitted), RejectReason::kExpired, refused);
    } else if (lost) {
      Refuse(device, next, DeviceLost(device.backend), std::nullopt, refused);
    } else {
      return;
    }
  }
}

void Scheduler::Impl::Complete(std::vector<Refused>& refused) {
  room_.Report();
  const absl::Time now = clock_.Now();
  for (Refused& one : refused) {
    if (one.reason.has_value()) observer_.OnReject(*one.reason);
    CallResult result;
    result.status = std::move(one.status);
    result.provenance.stages[static_cast<size_t>(Stage::kQueue)] =
        absl::ToDoubleSeconds(now - one.taken.submitted);
    one.taken.call->Complete(result);
    one.taken.call.reset();
  }
  refused.clear();
  EndBusy();
}

void Scheduler::Impl::EndBusy(bool* flag) {
  absl::MutexLock lock(&mu_);
  if (flag != nullptr) *flag = false;
  --busy_;
  if (Idle()) idle_.SignalAll();
}

absl::Time Scheduler::Impl::TakeBatch(Device& device, absl::Time now, Batch& batch) {
  if (paused_ || device.launching == device.slots) return absl::InfiniteFuture();
  const LeverView view = levers_.View();
  const absl::Time look_again = device.queue.Pick(view, now,
                                                  {.max_prefill_rows = options_.max_prefill_rows,
                                                   .max_lane_wait = options_.max_lane_wait,
                                                   .draining = draining_},
                                                  batch);
  if (batch.calls.empty()) return look_again;
  for (const TakenCall& taken : batch.calls) Unlist(*taken.call);
  ++busy_;
  ++device.launching;
  return look_again;
}

void Scheduler::Impl::RunBatch(Device& device, Executor& executor, Batch& batch) {
  const absl::Status status = executor.Launch(batch);
  {
    absl::MutexLock lock(&mu_);
    inflight_ -= static_cast<int64_t>(batch.calls.size());
    --device.launching;
    if (!device.queue.empty()) device.work.Signal();
  }
  executor.Reply(batch, status);
  executor.Audit(batch, status);
  batch.calls.clear();
  batch.levers.reset();
  batch.control.reset();
  batch.canary.reset();
}

bool Scheduler::Impl::NextBatch(Device& device, Batch& batch) {
  std::vector<Refused> refused;
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      for (;;) {
        if (stopping_) return false;
        absl::Time look_again = absl::InfiniteFuture();
        const absl::Time now = clock_.Now();
        Sweep(device, now, refused);
        if (refused.empty()) look_again = TakeBatch(device, now, batch);
        if (!batch.calls.empty() || !refused.empty()) break;
        clock_.Wait(mu_, device.work, look_again);
      }
      if (batch.calls.empty()) ++busy_;
      // What is left may suit another free slot.
      if (!device.queue.empty()) device.work.Signal();
    }
    if (!batch.calls.empty()) {
      room_.Report();
      return true;
    }
    Complete(refused);
  }
}

void Scheduler::Impl::SlotLoop(Device& device, Executor& executor) {
  Batch batch;
  while (NextBatch(device, batch)) {
    RunBatch(device, executor, batch);
    EndBusy();
  }
}

// Completes calls whose deadline passes while every slot is busy, so that they do not hold room in
// the queue against calls that still can run.
void Scheduler::Impl::ExpiryLoop() {
  std::vector<Refused> refused;
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      for (;;) {
        if (stopping_) return;
        const absl::Time now = clock_.Now();
        alarm_ = absl::InfiniteFuture();
        for (const auto& [backend, device] : devices_) {
          Sweep(*device, now, refused);
          const Waiting* const next = device->queue.MostUrgent();
          if (next != nullptr) alarm_ = std::min(alarm_, next->call->deadline);
        }
        if (!refused.empty()) break;
        clock_.Wait(mu_, expiry_, alarm_);
      }
      ++busy_;
    }
    Complete(refused);
  }
}

Scheduler::Scheduler(const std::vector<Backend*>& backends, LeverStore& levers, Observer& observer,
                     Checkers checkers, const Clock& clock, SchedulerOptions options)
    : impl_(std::make_unique<Impl>(backends, levers, observer, checkers, clock, options)) {}
Scheduler::~Scheduler() = default;

absl::Status Scheduler::Submit(std::shared_ptr<Call>& call, OnIdle on_idle) {
  return impl_->Submit(call, on_idle);
}
void Scheduler::Cancel(const Call* call) { impl_->Cancel(call); }
void Scheduler::Drain(absl::Duration patience) { impl_->Drain(patience); }
void Scheduler::Pause() { impl_->SetPaused(true); }
void Scheduler::Resume() { impl_->SetPaused(false); }
int64_t Scheduler::queued_rows() const { return impl_->queued_rows(); }
int64_t Scheduler::inflight_calls() const { return impl_->inflight_calls(); }

}  // namespace fulcrum

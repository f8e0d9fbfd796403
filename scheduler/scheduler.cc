// What other threads ask of the scheduler: submit, cancel, drain. See scheduler_impl.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_format.h"
#include "scheduler/scheduler_impl.h"

namespace fulcrum {

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
    auto device = std::make_unique<Device>(*backend, std::max(slots, 1), observer, checkers, clock);
    device->slot_loops = device->slots + 1;
    device->moved = clock_.Now();
    devices_[backend] = std::move(device);
  }
  for (const auto& [backend, device] : devices_) {
    for (int i = 0; i < device->slot_loops; ++i) {
      executors_.push_back(std::make_unique<Executor>(device->backend, observer, checkers, clock));
      threads_.emplace_back(
          [this, d = device.get(), e = executors_.back().get()] { SlotLoop(*d, *e); });
    }
  }
  threads_.emplace_back([this] { ExpiryLoop(); });
  lever_changes_ = levers_.Subscribe([this](const LeverEvent&) {
    absl::MutexLock lock(&mu_);
    SignalAll();
  });
}

Scheduler::Impl::~Impl() {
  Drain(absl::ZeroDuration());
  lever_changes_.reset();
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    SignalAll();
    expiry_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Scheduler::Impl::SignalAll() {
  for (const auto& [backend, device] : devices_) device->work.SignalAll();
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
    refusal = WhyNotTaken(device, *call, now);
    if (!refusal) {
      const CallSide side = SideOf(levers_.View(), *call);
      Call& c = *call;
      const bool run_here = on_idle == OnIdle::kRunHere && c.step == Step::kDecode &&
                            !caller_runs_ && device.queue.empty();
      c.waiting = device.queue.Add(call, now, next_seq_++, side);
      call = nullptr;  // nothing below throws, but for what takes a batch
      c.place.store(CallPlace::kWaiting, std::memory_order_release);
      room_.Enter(c);
      ++inflight_;
      if (device.waiting++ == 0 && device.launching == 0) device.moved = now;
      // A batch that cannot be taken here is left to the slots.
      if (run_here)
        (void)Guarded(observer_, Thrower::kScheduler, [&] { TakeBatch(device, now, here); });
      if (here.calls.empty()) {
        if (c.deadline < alarm_) expiry_.Signal();
        device.work.Signal();
      } else {
        caller_runs_ = true;
      }
    }
  }
  if (refusal) {
    if (refusal->reason.has_value()) {
      (void)Guarded(observer_, Thrower::kObserver, [&] { observer_.OnReject(*refusal->reason); });
    }
    return std::move(refusal->status);
  }
  room_.Report();
  if (!here.calls.empty()) {
    RunBatch(device, device.caller_executor, here);
    EndBusy(1, &caller_runs_);
  }
  return absl::OkStatus();
}

std::optional<Refusal> Scheduler::Impl::WhyNotTaken(const Device& device, const Call& call,
                                                    absl::Time now) const {
  if (draining_) {
    return Refusal{absl::UnavailableError("the node is draining; call another node"),
                   RejectReason::kDraining};
  }
  if (call.deadline <= now) return Refusal{Expired(absl::ZeroDuration()), RejectReason::kExpired};
  if (device.ended_slot_loops == device.slot_loops) {
    return Refusal{
        absl::UnavailableError(absl::StrFormat(
            "no batch loop of device %s is left; call another node", device.backend.device().id)),
        std::nullopt};
  }
  return room_.WhyNoRoom(call);
}

CallPlace Scheduler::Impl::Cancel(const Call* call, LeaveBy by) {
  std::vector<Refused> refused;
  {
    absl::MutexLock lock(&mu_);
    const CallPlace place = call->place.load(std::memory_order_acquire);
    if (place != CallPlace::kWaiting) return place;
    Device& device = *devices_.at(call->shards.front()->backend);
    Refuse(device, call->waiting, by, clock_.Now(), refused);
  }
  Complete(refused);
  return CallPlace::kWaiting;
}

void Scheduler::Impl::Hurry() {
  absl::MutexLock lock(&mu_);
  hurrying_ = true;
  SignalAll();
}

void Scheduler::Impl::Drain(absl::Duration patience) {
  {
    absl::MutexLock lock(&mu_);
    draining_ = hurrying_ = true;
    SignalAll();
    const absl::Time until = clock_.Now() + patience;
    while (!Idle() && clock_.Now() < until) clock_.Wait(mu_, idle_, until);
  }
  std::vector<Refused> refused;
  for (const auto& [backend, owned] : devices_) {
    Device& device = *owned;  // what cannot be refused for want of memory is tried again
    (void)KeepRunning(
        [&] {
          absl::MutexLock lock(&mu_);
          while (!device.queue.empty()) {
            Refuse(device, device.queue.MostUrgent(), LeaveBy::kDrain, clock_.Now(), refused);
          }
        },
        [&](const absl::Status& what) { observer_.OnException(Thrower::kScheduler, what); });
  }
  Complete(refused);
  absl::MutexLock lock(&mu_);
  while (!Idle()) idle_.Wait(&mu_);
}

void Scheduler::Impl::SetPaused(bool paused) {
  absl::MutexLock lock(&mu_);
  paused_ = paused;
  SignalAll();
}

Scheduler::Scheduler(const std::vector<Backend*>& backends, LeverStore& levers, Observer& observer,
                     Checkers checkers, const Clock& clock, SchedulerOptions options)
    : impl_(std::make_unique<Impl>(backends, levers, observer, checkers, clock, options)) {}
Scheduler::~Scheduler() = default;

absl::Status Scheduler::Submit(std::shared_ptr<Call>& call, OnIdle on_idle) {
  return impl_->Submit(call, on_idle);
}
CallPlace Scheduler::Cancel(const Call* call, LeaveBy by) { return impl_->Cancel(call, by); }
void Scheduler::Hurry() { impl_->Hurry(); }
void Scheduler::Drain(absl::Duration patience) { impl_->Drain(patience); }
void Scheduler::Pause() { impl_->SetPaused(true); }
void Scheduler::Resume() { impl_->SetPaused(false); }
std::vector<DeviceLiveness> Scheduler::Liveness() const { return impl_->Liveness(); }
int64_t Scheduler::queued_rows() const { return impl_->queued_rows(); }
int64_t Scheduler::inflight_calls() const { return impl_->inflight_calls(); }

}  // namespace fulcrum

// The scheduler's own threads: slots that take and run batches, and the one that expires calls. See
// scheduler_impl.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "scheduler/scheduler_impl.h"

namespace fulcrum {

void Scheduler::Impl::Unlist(Device& device, Call& call, CallPlace place) {
  --device.waiting;
  call.waiting = nullptr;
  call.place.store(place, std::memory_order_release);
  room_.Leave(call);
}

void Scheduler::Impl::Refuse(Device& device, Waiting* waiting, LeaveBy by, absl::Time now,
                             std::vector<Refused>& refused) {
  Refusal why = WhyItLeaves(by, *waiting->call, waiting->submitted, now);
  Refused& one = refused.emplace_back();
  one.why = std::move(why);
  one.taken = device.queue.Remove(waiting);
  Unlist(device, *one.taken.call, CallPlace::kLeft);
  --inflight_;
  ++busy_;
}

void Scheduler::Impl::Sweep(Device& device, absl::Time now, std::vector<Refused>& refused) {
  const bool lost = !device.queue.empty() && !device.backend.healthy();
  for (Waiting* next = device.queue.MostUrgent(); next != nullptr;
       next = device.queue.MostUrgent()) {
    if (next->call->deadline <= now) {
      Refuse(device, next, LeaveBy::kDeadline, now, refused);
    } else if (lost) {
      Refuse(device, next, LeaveBy::kDeviceLost, now, refused);
    } else {
      return;
    }
  }
}

void Scheduler::Impl::Complete(std::vector<Refused>& refused) {
  if (refused.empty()) return;
  room_.Report();
  const absl::Time now = clock_.Now();
  for (Refused& one : refused) {
    if (one.why.reason.has_value()) {
      (void)Guarded(observer_, Thrower::kObserver, [&] { observer_.OnReject(*one.why.reason); });
    }
    CallResult result;
    result.status = std::move(one.why.status);
    result.provenance.stages[static_cast<size_t>(Stage::kQueue)] =
        absl::ToDoubleSeconds(now - one.taken.submitted);
    (void)Guarded(observer_, Thrower::kBatch, [&] { one.taken.call->Complete(result); });
    one.taken.call.reset();
  }
  const auto count = static_cast<int64_t>(refused.size());
  refused.clear();
  EndBusy(count);
}

void Scheduler::Impl::EndBusy(int64_t count, bool* flag) {
  absl::MutexLock lock(&mu_);
  if (flag != nullptr) *flag = false;
  busy_ -= count;
  if (Idle()) idle_.SignalAll();
}

absl::Time Scheduler::Impl::TakeBatch(Device& device, absl::Time now, Batch& batch) {
  if (paused_ || device.launching == device.slots) return absl::InfiniteFuture();
  const LeverView view = levers_.View();
  const absl::Time look_again = device.queue.Pick(view, now,
                                                  {.max_prefill_rows = options_.max_prefill_rows,
                                                   .max_lane_wait = options_.max_lane_wait,
                                                   .draining = hurrying_},
                                                  batch);
  if (batch.calls.empty()) return look_again;
  for (const TakenCall& taken : batch.calls) Unlist(device, *taken.call, CallPlace::kRunning);
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
    device.moved = clock_.Now();
    if (status.ok()) device.last_launch = device.moved;
    if (!device.queue.empty()) device.work.Signal();
  }
  executor.Reply(batch, status);
  executor.Audit(batch, status);
  batch.calls.clear();
  batch.levers.reset();
  batch.control.reset();
  batch.canary.reset();
}

bool Scheduler::Impl::NextBatch(Device& device, Batch& batch, std::vector<Refused>& refused) {
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
  // What is left may suit another free slot.
  if (!device.queue.empty()) device.work.Signal();
  return true;
}

void Scheduler::Impl::SlotLoop(Device& device, Executor& executor) {
  Batch batch;
  std::vector<Refused> refused;
  const auto finish = [&] {
    Complete(refused);
    if (batch.calls.empty()) return;
    room_.Report();
    RunBatch(device, executor, batch);
    EndBusy(1);
  };
  const bool ended_well = KeepRunning(
      [&] {
        while (NextBatch(device, batch, refused)) finish();
      },
      [&](const absl::Status& what) {
        finish();
        observer_.OnException(Thrower::kScheduler, what);
      });
  if (ended_well) return;
  {
    absl::MutexLock lock(&mu_);
    ++device.ended_slot_loops;
  }
  (void)Caught([&] { observer_.OnLoopEnded(device.backend.device().id); });
}

// Completes calls whose deadline passes while every slot is busy, so that they do not hold room in
// the queue against calls that still can run.
void Scheduler::Impl::ExpiryLoop() {
  std::vector<Refused> refused;
  const auto loop = [&] {
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
      }
      Complete(refused);
    }
  };
  const bool ended_well = KeepRunning(loop, [&](const absl::Status& what) {
    Complete(refused);
    observer_.OnException(Thrower::kScheduler, what);
  });
  if (ended_well) return;
  {
    absl::MutexLock lock(&mu_);
    expiry_ended_ = true;
  }
  for (const auto& [backend, device] : devices_) {
    (void)Caught([&, d = device.get()] { observer_.OnLoopEnded(d->backend.device().id); });
  }
}

std::vector<DeviceLiveness> Scheduler::Impl::Liveness() const {
  std::vector<DeviceLiveness> all;
  all.reserve(devices_.size());
  absl::MutexLock lock(&mu_);
  for (const auto& [backend, device] : devices_) {
    const bool works = device->waiting > 0 || device->launching > 0;
    all.push_back({.backend = backend,
                   .waiting = device->waiting,
                   .launching = device->launching,
                   .last_launch = device->last_launch,
                   .stuck_since = works ? device->moved : absl::InfiniteFuture(),
                   .loops = device->slot_loops + 1,
                   .ended_loops = device->ended_slot_loops + (expiry_ended_ ? 1 : 0)});
  }
  return all;
}

}  // namespace fulcrum

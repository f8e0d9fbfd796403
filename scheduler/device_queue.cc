// See device_queue.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/device_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace fulcrum {
namespace {

constexpr size_t kSpareLanes = 64;

BatchingPolicy PolicyFor(Step step, const LeverSet& levers, const DeviceQueue::Rules& rules) {
  return {.max_rows = step == Step::kDecode ? static_cast<int>(levers.number(Lever::kMaxBatchRows))
                                            : rules.max_prefill_rows,
          .window = absl::Microseconds(levers.number(Lever::kCoalesceWindow)),
          .draining = rules.draining};
}

LaneRank RankOf(const Lane& lane) {
  const Waiting& oldest = *lane.oldest();
  return {.waiting_since = std::max(oldest.submitted, lane.last_run),
          .deadline = lane.most_urgent()->call->deadline,
          .turn = lane.last_run >= oldest.submitted ? lane.last_turn : 0,
          .seq = oldest.seq};
}

}  // namespace

DeviceQueue::DeviceQueue() { spare_lanes_.reserve(kSpareLanes); }

Waiting* DeviceQueue::Add(std::shared_ptr<Call> call, absl::Time now, uint64_t seq, CallSide side) {
  LaneKey key(*call, side.canary);
  auto at = lanes_.find(key);
  if (at != lanes_.end()) return at->second->Add(std::move(call), now, seq, side.under);
  if (spare_lanes_.empty()) spare_lanes_.push_back(std::make_unique<Lane>());
  Lane& lane = *spare_lanes_.back();
  lane.key = key;
  at = lanes_.emplace(std::move(key), nullptr).first;
  auto take_back = absl::MakeCleanup([&] { lanes_.erase(at); });
  Waiting* const waiting = lane.Add(std::move(call), now, seq, side.under);
  std::move(take_back).Cancel();
  lane.canary = side.canary;
  lane.draw = next_draw_++;
  at->second = std::move(spare_lanes_.back());
  spare_lanes_.pop_back();
  return waiting;
}

TakenCall DeviceQueue::Remove(Waiting* waiting) {
  Lane& lane = *waiting->lane;
  TakenCall taken = lane.Remove(waiting);
  if (lane.empty()) Drop(lane);
  return taken;
}

Waiting* DeviceQueue::MostUrgent() const {
  Waiting* most = nullptr;
  for (const auto& [key, lane] : lanes_) {
    Waiting* const waiting = lane->most_urgent();
    if (most == nullptr || waiting->call->deadline < most->call->deadline) most = waiting;
  }
  return most;
}

absl::Time DeviceQueue::Pick(const LeverView& view, absl::Time now, const Rules& rules,
                             Batch& batch) {
  absl::Time look_again = absl::InfiniteFuture();
  Lane* best = nullptr;
  BatchingPolicy best_policy;
  std::optional<CloseReason> best_reason;
  std::shared_ptr<const LeverSnapshot> best_levers;
  for (const auto& [key, lane] : lanes_) {
    const std::shared_ptr<const LeverSnapshot>& snapshot =
        SnapshotFor(view, lane->canary, lane->draw);
    const LeverSnapshot& levers = *snapshot;
    const BatchingPolicy policy = PolicyFor(key.step, levers.levers, rules);
    const OpenBatch open = Open(*lane, levers);
    const std::optional<CloseReason> reason = ShouldClose(open, now, policy);
    if (!reason.has_value()) {
      if (lane->held_epoch == 0) lane->held_epoch = levers.epoch;
      look_again = std::min(look_again, WindowEnd(open, policy));
    } else if (best == nullptr ||
               GoesBefore(RankOf(*lane), RankOf(*best), now, rules.max_lane_wait)) {
      best = lane.get();
      best_policy = policy;
      best_reason = reason;
      best_levers = snapshot;
    }
  }
  if (best == nullptr) return look_again;

  batch.picked = now;
  batch.close_reason = *best_reason;
  best->last_run = now;
  best->last_turn = next_turn_++;
  best->held_epoch = 0;
  batch.control = view.live;
  batch.canary = view.canary;
  // What a client or shard of the canary's side ran under the live levers, because checks were
  // behind or the valve is closed, is no control: it would be compared with itself, and with the
  // busy moments of the canary's side alone. By batch no unit belongs to a side: what a batch holds
  // does not depend on what it drew, so that one run under the live levers is as good a control as
  // any.
  if (view.canary != nullptr && view.canary->unit != CanaryUnit::kBatch &&
      best->canary == view.canary->id && best_levers == view.live) {
    batch.canary = nullptr;
  }
  batch.levers = std::move(best_levers);
  Take(*best, best_policy.max_rows, batch);
  // Who waited already when the canary began had no side: such calls may be those of a client of
  // the canary's side, and the backlog that they made is not the load that the canary's side saw.
  if (batch.canary != nullptr && !batch.candidate() &&
      std::any_of(batch.calls.begin(), batch.calls.end(),
                  [&](const TakenCall& taken) { return taken.under != batch.canary->id; })) {
    batch.canary = nullptr;
  }
  return now;
}

OpenBatch DeviceQueue::Open(Lane& lane, const LeverSnapshot& levers) const {
  const Call& first = *lane.first()->call;
  int64_t rows = 0;
  for (Policy policy : kAllPolicies) {
    if (lane.rows(policy) == 0) continue;
    if (policy != first.policy &&
        lane.ClassesFor(policy, levers) != lane.ClassesFor(first.policy, levers)) {
      continue;
    }
    rows += lane.rows(policy);
  }
  return {.rows = rows,
          .opened = lane.oldest()->submitted,
          .deadline = lane.most_urgent()->call->deadline,
          .lever_changed = lane.held_epoch != 0 && lane.held_epoch != levers.epoch};
}

void DeviceQueue::Take(Lane& lane, int max_rows, Batch& batch) {
  const LeverSnapshot& levers = *batch.levers;
  lane.draw = next_draw_++;
  // Classes of all policies before any call leaves: they are read off a waiting call.
  for (Policy policy : kAllPolicies) lane.ClassesFor(policy, levers);
  const auto may_join = [&](const Call& one, const Call& other) {
    return one.policy == other.policy ||
           lane.ClassesFor(one.policy, levers) == lane.ClassesFor(other.policy, levers);
  };
  const bool full = lane.Take(max_rows, may_join, batch.calls);
  batch.rows = 0;
  for (const TakenCall& taken : batch.calls) batch.rows += taken.call->rows;
  // Rows held back by their client's order count as waiting but not as taken, and room may run out
  // on the last call: what was taken says whether the batch is full.
  if (full) {
    batch.close_reason = CloseReason::kFull;
  } else if (batch.close_reason == CloseReason::kFull) {
    batch.close_reason = CloseReason::kDeviceIdle;
  }
  if (lane.empty()) Drop(lane);
}

void DeviceQueue::Drop(Lane& lane) {
  const auto it = lanes_.find(*lane.key);
  lane.Reset();
  if (spare_lanes_.size() < kSpareLanes) spare_lanes_.push_back(std::move(it->second));
  lanes_.erase(it);
}

}  // namespace fulcrum

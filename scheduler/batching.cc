// See batching.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/batching.h"

#include <tuple>

#include "kernels/numerics/splitmix.h"

namespace fulcrum {

absl::Time WindowEnd(const OpenBatch& batch, const BatchingPolicy& policy) {
  return batch.opened + policy.window;
}

std::optional<CloseReason> ShouldClose(const OpenBatch& batch, absl::Time now,
                                       const BatchingPolicy& policy) {
  if (batch.rows == 0) return std::nullopt;
  if (batch.rows >= policy.max_rows) return CloseReason::kFull;
  if (policy.window <= absl::ZeroDuration()) return CloseReason::kDeviceIdle;
  if (policy.draining) return CloseReason::kDrain;
  if (batch.lever_changed) return CloseReason::kLeverChange;
  if (now >= WindowEnd(batch, policy)) return CloseReason::kWindow;
  if (batch.deadline <= WindowEnd(batch, policy)) return CloseReason::kDeadline;
  return std::nullopt;
}

bool GoesBefore(const LaneRank& a, const LaneRank& b, absl::Time now,
                absl::Duration max_lane_wait) {
  const auto key = [&](const LaneRank& rank) {
    const bool overdue = now - rank.waiting_since > max_lane_wait;
    // Among overdue lanes deadlines do not count.
    return std::tuple(!overdue, overdue ? absl::InfinitePast() : rank.deadline, rank.waiting_since,
                      rank.turn, rank.seq);
  };
  return key(a) < key(b);
}

CallSide SideOf(const LeverView& view, const Call& call) {
  const CanarySplit* const split = view.canary.get();
  if (split == nullptr) return {};
  if (split->valve->closed.load(std::memory_order_acquire)) return {.under = split->id};
  const bool assigned = split->unit == CanaryUnit::kBatch
                            ? call.policy == Policy::kFastest
                            : Assigned(split->salt, UnitKey(split->unit, call), split->share);
  return {.canary = assigned ? split->id : 0, .under = split->id};
}

const std::shared_ptr<const LeverSnapshot>& SnapshotFor(const LeverView& view, uint64_t canary,
                                                        uint64_t draw) {
  const CanarySplit* const split = view.canary.get();
  if (canary == 0 || split == nullptr || split->id != canary || !split->valve->open()) {
    return view.live;
  }
  if (split->unit == CanaryUnit::kBatch) {
    if (!Assigned(split->salt, SplitMix(draw), split->share)) return view.live;
  }
  return split->candidate;
}

}  // namespace fulcrum

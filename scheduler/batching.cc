// See batching.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/batching.h"

#include <tuple>

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

}  // namespace fulcrum

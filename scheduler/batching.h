// The rules of batching as pure functions: when a lane's batch closes and which lane goes first.
// Time and levers arrive as arguments. What a lane holds is lane.h's; acting on a decision is
// scheduler.cc's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "scheduler/call.h"
#include "scheduler/lever_store.h"

namespace fulcrum {

// The batch that a lane would give to a free launch slot now.
struct OpenBatch {
  int64_t rows = 0;            // waiting rows that could run together
  absl::Time opened;           // when its oldest call came
  absl::Time deadline;         // the earliest of its calls
  bool lever_changed = false;  // the lever epoch moved while it was held open
};

struct BatchingPolicy {
  int max_rows = 0;       // rows at which a batch closes
  absl::Duration window;  // how long it may wait for company; zero: not at all
  bool draining = false;
};

// Called when a launch slot is free. Nothing: hold the batch open, until WindowEnd at the latest.
std::optional<CloseReason> ShouldClose(const OpenBatch& batch, absl::Time now,
                                       const BatchingPolicy& policy);
absl::Time WindowEnd(const OpenBatch& batch, const BatchingPolicy& policy);

// What decides which of two lanes with a closing batch goes first.
struct LaneRank {
  absl::Time waiting_since;    // when its oldest call came or the lane last ran, whichever is later
  absl::Time deadline;         // the earliest of its calls
  uint64_t turn = 0, seq = 0;  // break ties: the turn of its last run, the order of submission
};
// A lane that waited beyond `max_lane_wait` goes before deadlines; then the earliest deadline; then
// the lane that waited longest. Counting from a lane's last run, a flooded lane is one among
// equals.
bool GoesBefore(const LaneRank& a, const LaneRank& b, absl::Time now, absl::Duration max_lane_wait);

// The side of a call, decided once, when it comes. Under the unit `batch` every call under FASTEST
// is on the canary's, and its batches draw.
struct CallSide {
  uint64_t canary = 0;  // the canary whose candidate it runs; 0: it is on the control's side
  uint64_t under = 0;   // the canary under way; 0: none
};
CallSide SideOf(const LeverView& view, const Call& call);

// The one place that decides which snapshot a batch of a side runs under. `draw` numbers the
// batches of the unit `batch`. Calls of a canary that ended meanwhile run under the live snapshot.
const std::shared_ptr<const LeverSnapshot>& SnapshotFor(const LeverView& view, uint64_t canary,
                                                        uint64_t draw);

}  // namespace fulcrum

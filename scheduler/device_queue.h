// What waits for one device: its lanes, and the choice of the batch that a free launch slot runs
// next. Not thread-safe: the scheduler's lock guards it, and time and levers arrive as arguments.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/time/time.h"
#include "scheduler/batching.h"
#include "scheduler/executor.h"
#include "scheduler/lane.h"

namespace fulcrum {

class DeviceQueue {
 public:
  struct Rules {
    int max_prefill_rows = 0;
    absl::Duration max_lane_wait;
    bool draining = false;
  };

  DeviceQueue();

  bool empty() const { return lanes_.empty(); }
  // An Add or a Pick that throws changed nothing; Remove does not throw.
  Waiting* Add(std::shared_ptr<Call> call, absl::Time now, uint64_t seq, CallSide side = {});
  TakenCall Remove(Waiting* waiting);
  // The waiting call with the earliest deadline; null when empty.
  Waiting* MostUrgent() const;

  // Fills `batch` (given with no calls) from the lane whose turn it is and whose batch closes. When
  // none closes now, leaves it so and returns when to look again.
  absl::Time Pick(const LeverView& view, absl::Time now, const Rules& rules, Batch& batch);

 private:
  OpenBatch Open(Lane& lane, const LeverSnapshot& levers) const;
  void Take(Lane& lane, int max_rows, Batch& batch);
  void Drop(Lane& lane);

  // None is empty. Not Abseil's, for the reason of name_map.h.
  std::unordered_map<LaneKey, std::unique_ptr<Lane>, absl::Hash<LaneKey>> lanes_;
  std::vector<std::unique_ptr<Lane>> spare_lanes_;  // empty, kept for their memory
  uint64_t next_turn_ = 1;
  uint64_t next_draw_ = 1;
};

}  // namespace fulcrum

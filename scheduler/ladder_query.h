// What the ladder is asked about a shard: one question for the lane that groups calls, the executor
// that picks the arm, and ExplainLadder, so that what is explained is what runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/ladder/ladder.h"
#include "scheduler/shard_store.h"

namespace fulcrum {

inline LadderQuery QueryFor(const Shard& shard, Step step, Policy policy) {
  return {.format = shard.format(),
          .family = shard.family,
          .step = step,
          .policy = policy,
          .device_caps = shard.backend->device().caps};
}

}  // namespace fulcrum

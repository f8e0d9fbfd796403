// An A/B of lever sets over decode steps, interleaved: a round runs one step under every set, so
// that what drifts meanwhile (clocks, other load) is in all of them, and every other round runs
// backwards, so that no set always comes first. What a set is compared by is its ratio to the first
// set's step of the same round.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/lever_set.h"
#include "client/cli/step_node.h"
#include "client/cli/step_run.h"

namespace fulcrum::cli {

struct AbOptions {
  int rows = 16;
  int rounds = 20;
  int settle = 1;                   // steps after a set was turned on that are not measured
  std::function<bool()> stop = {};  // asked before every set; may be empty
};

// Weights of one phase for which the levers asked for one arm and another ran.
struct AbDecline {
  Phase phase = Phase::kOther;
  std::string asked, ran;
  int weights = 0;
};

struct AbSide {
  LeverSetting setting = {};
  std::vector<StepSample> samples = {};  // one a round
  std::vector<AbDecline> declines = {};
};

struct AbResult {
  std::vector<AbSide> sides;
  // Rounds run again because a reply's epoch was not the one its set was live in: somebody else
  // turned levers, or a canary has a share of the calls.
  int discarded_rounds = 0;
};

// Every reply counts for the set whose epoch it carries, or its round for none. ABORTED when rounds
// are discarded as often as they count; CANCELLED when asked to stop. `settings` are complete
// (LeverLoan::Take).
absl::StatusOr<AbResult> RunAb(StepNode& node, LeverLoan& loan,
                               const std::vector<DecodeCall>& calls,
                               const std::vector<LeverSetting>& settings, const AbOptions& options);

// Whether every call of the phase ran the same arms on both sides: then a difference between them
// is none of the levers'.
bool SameArms(const std::vector<DecodeCall>& calls, const StepSample& a, const StepSample& b,
              Phase phase);

}  // namespace fulcrum::cli

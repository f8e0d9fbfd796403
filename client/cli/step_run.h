// One decode step on a node, timed: each call waits for the reply before it, as a model's would.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/step_node.h"

namespace fulcrum::cli {

struct StepTimes {
  double wall = 0;    // seconds, from sending a call to its reply
  double kernel = 0;  // seconds, of the launches
};

struct StepSample {
  std::array<StepTimes, kAllPhases.size()> phases{};
  StepTimes whole;
  std::set<uint64_t> epochs;                   // of the replies
  int shared_launches = 0;                     // calls whose launch had other callers' rows too
  std::vector<std::vector<std::string>> arms;  // by call and weight

  const StepTimes& of(Phase phase) const { return phases[static_cast<size_t>(phase)]; }
};

// The node has prepared `calls`.
absl::StatusOr<StepSample> RunStep(StepNode& node, const std::vector<DecodeCall>& calls, int rows);

// The phases that the calls have, in the order of kAllPhases.
std::vector<Phase> PhasesOf(const std::vector<DecodeCall>& calls);
// The arms that ran in a phase, "a + b", in the order of the calls.
std::string TiersOf(const std::vector<DecodeCall>& calls, const StepSample& sample, Phase phase);

}  // namespace fulcrum::cli

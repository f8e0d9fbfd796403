// What an A/B is told as: for every set against the first, a table of phase, tiers and change.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "client/cli/ab_run.h"
#include "client/cli/json.h"
#include "client/cli/sample_stats.h"

namespace fulcrum::cli {

struct AbRow {
  std::string phase;  // or "step"
  std::string tiers_a, tiers_b;
  bool same_arms = false;
  double a = 0, b = 0;  // median seconds of a step
  Change wall, kernel;
};

// Of one side against another: its phases, then the whole step.
std::vector<AbRow> CompareSides(const std::vector<DecodeCall>& calls, const AbSide& a,
                                const AbSide& b);

// `title`: before the names of the sets.
void PrintComparison(std::ostream& out, const std::string& title,
                     const std::vector<DecodeCall>& calls, const AbSide& a, const AbSide& b);
Json ComparisonJson(const std::vector<DecodeCall>& calls, const AbSide& a, const AbSide& b);

}  // namespace fulcrum::cli

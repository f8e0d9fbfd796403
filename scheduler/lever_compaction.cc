// See lever_compaction.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_compaction.h"

#include <algorithm>
#include <set>
#include <string>

namespace fulcrum {

std::vector<LeverStep> CompactSteps(const std::vector<LeverStep>& steps, size_t recent) {
  std::set<std::string> set, last;
  bool canary = false;
  std::vector<LeverStep> kept;
  for (size_t i = steps.size(); i-- > 0;) {
    const LeverStep& step = steps[i];
    const LeverCause cause = step.front().cause;
    bool needed = steps.size() - i <= recent;
    if (step.front().canary != 0) {
      needed |= !canary;
      canary = true;
    }
    for (const LeverEvent& event : step) {
      const bool by_rpc = cause == LeverCause::kSet || cause == LeverCause::kPromote;
      if (by_rpc) needed |= set.insert(event.lever).second;
      if (cause != LeverCause::kCanaryStart) needed |= last.insert(event.lever).second;
    }
    if (needed) kept.push_back(step);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

}  // namespace fulcrum

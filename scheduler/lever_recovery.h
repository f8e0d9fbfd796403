// What a node starts with: the levers of its configuration, and what its journal says was set in
// earlier lives. A pure function.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/lever_event.h"
#include "scheduler/lever_store.h"

namespace fulcrum {

struct LeverRecovery {
  LeverSnapshot levers = {};             // what the node starts with
  std::vector<LeverEvent> history = {};  // all of the journal, oldest first
  std::vector<LeverStep> steps =
      {};  // what the start itself changed, to be appended to the journal
  std::vector<std::string> warnings = {};
};

// Values that SetLevers and promotions left are restored, with source kJournal, over every source
// of `configured`; a latched lever keeps its configured value. A canary that was running is over:
// its levers have the control's values. Epochs go on where the journal ends, and a start that
// changes no value makes no new one.
LeverRecovery RecoverLevers(const LeverSnapshot& configured, const std::vector<LeverStep>& journal,
                            absl::Time now);

}  // namespace fulcrum

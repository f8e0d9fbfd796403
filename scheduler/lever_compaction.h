// Which steps of a long journal are still needed. A pure function; putting a shorter file in the
// place of the journal is lever_journal.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "scheduler/lever_event.h"

namespace fulcrum {

// A journal of more steps is made shorter when it is opened; so many of the newest stay.
inline constexpr size_t kLongJournal = 4096, kRecentSteps = 1024;

// The last `recent` steps, and of those before them each that RecoverLevers still needs: the newest
// that set a lever by RPC, the newest that left a lever its value, the newest of a canary. Steps
// are kept whole and in order, so that a node recovers the same levers and epoch from what is left.
std::vector<LeverStep> CompactSteps(const std::vector<LeverStep>& steps, size_t recent);

}  // namespace fulcrum

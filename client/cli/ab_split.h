// An A/B inside one stream of calls: a canary by batch draws for each batch which of two lever sets
// it runs under, and the reply's lever epoch says which it was. No lever is turned between two
// calls, so nothing has to settle, and what drifts meets both sets alike. Who runs the canary is
// canary_loan.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "client/cli/ab_run.h"

namespace fulcrum::cli {

struct AbSplit {
  uint64_t epoch_a = 0, epoch_b = 0;
  // Asked every few seconds, and when a reply has another epoch: not OK says what became of the
  // canary, and ends the A/B. May be empty.
  std::function<absl::Status()> alive = {};
  absl::Duration patience = absl::Minutes(5);  // until both sets get their share
};

// Sends decode steps until every call has `options.rounds` replies of either set. The n-th sample
// of a side is a step put together from the n-th replies of its calls: both sides' n-th were sent
// close to each other, and no reply is in two samples. Before that come `options.settle` steps and
// as many as it takes until either set gets its share: a node checks the first batches of a canary,
// and gives it no more than the checks keep up with. Until then set A alone would meet the checks'
// load. ABORTED when replies have other epochs; RESOURCE_EXHAUSTED when one set gets too few;
// CANCELLED when asked to stop.
absl::StatusOr<AbResult> RunSplitAb(StepNode& node, const std::vector<DecodeCall>& calls,
                                    const LeverSetting& a, const LeverSetting& b,
                                    const AbOptions& options, const AbSplit& split);

}  // namespace fulcrum::cli

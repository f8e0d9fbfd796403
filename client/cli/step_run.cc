// See step_run.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/step_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace fulcrum::cli {

absl::StatusOr<StepSample> RunStep(StepNode& node, const std::vector<DecodeCall>& calls, int rows) {
  std::vector<StepReply> replies(calls.size());
  std::vector<int64_t> ended(calls.size());  // kept for afterwards: the step does nothing else
  const int64_t begin = absl::GetCurrentTimeNanos();
  for (size_t i = 0; i < calls.size(); ++i) {
    auto reply = node.Call(i);
    if (!reply.ok()) return reply.status();
    ended[i] = absl::GetCurrentTimeNanos();
    replies[i] = *std::move(reply);
  }
  StepSample sample;
  int64_t sent = begin;
  for (size_t i = 0; i < calls.size(); ++i) {
    const double wall = static_cast<double>(ended[i] - sent) * 1e-9;
    sent = ended[i];
    for (StepTimes* times : {&sample.whole, &sample.phases[static_cast<size_t>(calls[i].phase)]}) {
      times->wall += wall;
      times->kernel += replies[i].kernel;
    }
    sample.epochs.insert(replies[i].lever_epoch);
    sample.shared_launches += replies[i].batch_rows > rows;
    sample.arms.push_back(std::move(replies[i].arms));
  }
  return sample;
}

std::vector<Phase> PhasesOf(const std::vector<DecodeCall>& calls) {
  std::vector<Phase> phases;
  for (const Phase phase : kAllPhases) {
    if (std::any_of(calls.begin(), calls.end(),
                    [&](const DecodeCall& call) { return call.phase == phase; })) {
      phases.push_back(phase);
    }
  }
  return phases;
}

std::string TiersOf(const std::vector<DecodeCall>& calls, const StepSample& sample, Phase phase) {
  std::vector<std::string> tiers;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].phase != phase) continue;
    for (const std::string& arm : sample.arms[i]) {
      if (std::find(tiers.begin(), tiers.end(), arm) == tiers.end()) tiers.push_back(arm);
    }
  }
  return absl::StrJoin(tiers, " + ");
}

}  // namespace fulcrum::cli

// See ab_run.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/ab_run.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fulcrum::cli {
namespace {

class Runner {
 public:
  Runner(StepNode& node, LeverLoan& loan, const std::vector<DecodeCall>& calls,
         const AbOptions& options)
      : node_(node), loan_(loan), calls_(calls), options_(options) {}

  // One measured step under the side's levers; `foreign` when a reply has another epoch.
  absl::StatusOr<StepSample> Measure(AbSide& side, bool* foreign) {
    if (options_.stop && options_.stop()) return absl::CancelledError("asked to stop");
    const auto epoch = loan_.Apply(side.setting);
    if (!epoch.ok()) return epoch.status();
    for (int i = 0; i < options_.settle; ++i) {
      if (absl::Status s = RunStep(node_, calls_, options_.rows).status(); !s.ok()) return s;
    }
    auto sample = RunStep(node_, calls_, options_.rows);
    if (!sample.ok()) return sample.status();
    // A set that names no lever has no epoch of its own, but still one for all of its replies.
    *foreign |= sample->epochs.size() != 1 || (*epoch != 0 && *sample->epochs.begin() != *epoch);
    if (!*foreign && side.samples.empty()) {
      if (absl::Status s = NoteDeclines(side, *sample); !s.ok()) return s;
    }
    return sample;
  }

 private:
  absl::Status NoteDeclines(AbSide& side, const StepSample& sample) {
    std::map<std::tuple<Phase, std::string, std::string>, int> counts;
    for (size_t i = 0; i < calls_.size(); ++i) {
      const auto declined = node_.Declined(i);
      if (!declined.ok()) return declined.status();
      for (size_t w = 0; w < declined->size() && w < sample.arms[i].size(); ++w) {
        const std::string& asked = (*declined)[w];
        if (!asked.empty()) ++counts[{calls_[i].phase, asked, sample.arms[i][w]}];
      }
    }
    side.declines.clear();
    for (const auto& [what, weights] : counts) {
      const auto& [phase, asked, ran] = what;
      side.declines.push_back({phase, asked, ran, weights});
    }
    return absl::OkStatus();
  }

  StepNode& node_;
  LeverLoan& loan_;
  const std::vector<DecodeCall>& calls_;
  const AbOptions& options_;
};

}  // namespace

absl::StatusOr<AbResult> RunAb(StepNode& node, LeverLoan& loan,
                               const std::vector<DecodeCall>& calls,
                               const std::vector<LeverSetting>& settings,
                               const AbOptions& options) {
  AbResult result;
  for (const LeverSetting& setting : settings) result.sides.push_back({.setting = setting});
  Runner runner(node, loan, calls, options);
  for (int round = 0; round < options.rounds;) {
    std::vector<StepSample> samples(settings.size());
    bool foreign = false;
    for (size_t i = 0; i < settings.size(); ++i) {
      const size_t at = round % 2 == 0 ? i : settings.size() - 1 - i;
      auto sample = runner.Measure(result.sides[at], &foreign);
      if (!sample.ok()) return sample.status();
      samples[at] = *std::move(sample);
    }
    if (foreign) {
      if (++result.discarded_rounds <= options.rounds) continue;
      return absl::AbortedError(
          absl::StrCat(result.discarded_rounds,
                       " rounds had replies of other lever epochs than their sets': somebody else "
                       "turns levers, or a canary runs"));
    }
    for (size_t i = 0; i < settings.size(); ++i) {
      result.sides[i].samples.push_back(std::move(samples[i]));
    }
    ++round;
  }
  return result;
}

bool SameArms(const std::vector<DecodeCall>& calls, const StepSample& a, const StepSample& b,
              Phase phase) {
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].phase == phase && a.arms[i] != b.arms[i]) return false;
  }
  return true;
}

}  // namespace fulcrum::cli

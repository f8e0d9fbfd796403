// See ab_split.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/ab_split.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace fulcrum::cli {
namespace {

// How often the node is told that the A/B goes on: well within the canary's guard.
constexpr absl::Duration kBeat = absl::Seconds(5);
// Either set has its share when it had this part of so many replies: two in a thousand fair draws
// of a half fall below, and are drawn again.
constexpr int kLeastReplies = 100;
constexpr double kLeastPart = 0.35;
// A share of a half needs some 2 steps a round and the luck of the last call; many more mean that
// one set is not served any more.
constexpr int kMostStepsPerRound = 50;

struct Measured {
  double wall = 0;
  StepReply reply;
};

class SplitRunner {
 public:
  SplitRunner(StepNode& node, const std::vector<DecodeCall>& calls, const AbOptions& options,
              const AbSplit& split)
      : node_(node), calls_(calls), options_(options), split_(split), of_call_(calls.size()) {}

  // Until either set gets its share.
  absl::Status LeadIn() {
    const absl::Time until = absl::Now() + split_.patience;
    for (int left = options_.settle;;) {
      replies_ = {0, 0};
      for (; left > 0 || replies_[0] + replies_[1] < kLeastReplies; --left) {
        if (absl::Status s = Step(/*measured=*/false); !s.ok()) return s;
      }
      const auto [fewer, more] = std::minmax(replies_[0], replies_[1]);
      if (fewer >= kLeastPart * (fewer + more)) return absl::OkStatus();
      if (absl::Now() < until) continue;
      return absl::ResourceExhaustedError(
          absl::StrCat("of the last ", fewer + more, " replies ", fewer,
                       " were of one of the sets after ", absl::FormatDuration(split_.patience),
                       ": the node's checks of a canary's first batches ", "do not keep up"));
    }
  }

  absl::Status Step(bool measured) {
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (absl::Status s = MayGoOn(); !s.ok()) return s;
      const int64_t sent = absl::GetCurrentTimeNanos();
      auto reply = node_.Call(i);
      if (!reply.ok()) return reply.status();
      const double wall = static_cast<double>(absl::GetCurrentTimeNanos() - sent) * 1e-9;
      const uint64_t epoch = reply->lever_epoch;
      if (epoch != split_.epoch_a && epoch != split_.epoch_b) return Foreign(epoch);
      const bool b = epoch == split_.epoch_b;
      ++replies_[b];
      std::vector<Measured>& side = of_call_[i][b];
      if (measured && side.size() < rounds()) side.push_back({wall, *std::move(reply)});
    }
    return absl::OkStatus();
  }

  // Replies that the call and side with the fewest has.
  size_t fewest() const {
    size_t fewest = rounds();
    for (const auto& sides : of_call_) {
      for (const auto& side : sides) fewest = std::min(fewest, side.size());
    }
    return fewest;
  }
  size_t rounds() const { return static_cast<size_t>(options_.rounds); }

  std::vector<StepSample> Samples(bool b) const {
    std::vector<StepSample> samples(rounds());
    for (size_t n = 0; n < rounds(); ++n) {
      StepSample& sample = samples[n];
      for (size_t i = 0; i < calls_.size(); ++i) {
        const Measured& one = of_call_[i][b][n];
        StepTimes& phase = sample.phases[static_cast<size_t>(calls_[i].phase)];
        for (StepTimes* times : {&sample.whole, &phase}) {
          times->wall += one.wall;
          times->kernel += one.reply.kernel;
        }
        sample.epochs.insert(one.reply.lever_epoch);
        sample.shared_launches += one.reply.batch_rows > options_.rows;
        sample.arms.push_back(one.reply.arms);
      }
    }
    return samples;
  }

 private:
  absl::Status MayGoOn() {
    if (options_.stop && options_.stop()) return absl::CancelledError("asked to stop");
    if (!split_.alive || absl::Now() < next_beat_) return absl::OkStatus();
    next_beat_ = absl::Now() + kBeat;
    return split_.alive();
  }
  absl::Status Foreign(uint64_t epoch) const {
    if (split_.alive) {
      if (absl::Status s = split_.alive(); !s.ok()) return s;
    }
    return absl::AbortedError(absl::StrCat("a reply has lever epoch ", epoch, ", the sets have ",
                                           split_.epoch_a, " and ", split_.epoch_b,
                                           ": somebody else turns levers, or the canary is over"));
  }

  StepNode& node_;
  const std::vector<DecodeCall>& calls_;
  const AbOptions& options_;
  const AbSplit& split_;
  std::vector<std::array<std::vector<Measured>, 2>> of_call_;  // by call and side
  std::array<int, 2> replies_{};                               // of either set since the last look
  absl::Time next_beat_ = absl::InfinitePast();
};

}  // namespace

absl::StatusOr<AbResult> RunSplitAb(StepNode& node, const std::vector<DecodeCall>& calls,
                                    const LeverSetting& a, const LeverSetting& b,
                                    const AbOptions& options, const AbSplit& split) {
  SplitRunner runner(node, calls, options, split);
  if (absl::Status s = runner.LeadIn(); !s.ok()) return s;
  for (int64_t step = 0; runner.fewest() < runner.rounds(); ++step) {
    if (step >= int64_t{kMostStepsPerRound} * options.rounds) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "after ", step, " steps some call has ", runner.fewest(), " replies of one of the sets, ",
          "of ", options.rounds, " asked for: the node gives it too few batches"));
    }
    if (absl::Status s = runner.Step(/*measured=*/true); !s.ok()) return s;
  }
  AbResult result;
  result.sides.push_back({.setting = a, .samples = runner.Samples(false)});
  result.sides.push_back({.setting = b, .samples = runner.Samples(true)});
  return result;
}

}  // namespace fulcrum::cli

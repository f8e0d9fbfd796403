// Named sets of lever values on the command line, and levers that are turned for a while and then
// turned back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/step_node.h"

namespace fulcrum::cli {

// How long turning levers back, or aborting a canary, may take.
inline constexpr absl::Duration kTurnBack = absl::Seconds(5);

// The same error, said in another way.
absl::Status WithMessage(const absl::Status& status, const std::string& message);

struct LeverSetting {
  std::string name;
  LeverValues values;  // may be empty: the levers as they are
};

// "m16_tc=attn_qkv,attn_o; max_batch_rows=8", any number of them.
absl::StatusOr<LeverValues> ParseLeverValues(const std::string& text);
// The same behind "NAME:"; without it the text is the name.
absl::StatusOr<LeverSetting> ParseLeverSetting(const std::string& text);

// Turns levers and, in the end, gives those it touched the values they had. Every change is based
// on the epoch of the one before it: what somebody else set meanwhile is never turned over.
class LeverLoan {
 public:
  // Notes the values of all levers that `settings` name. Their settings become complete: a lever
  // that only others name has the value it had.
  static absl::StatusOr<LeverLoan> Take(StepNode& node, std::vector<LeverSetting>& settings);

  // Whether the setting was live when the loan was taken.
  bool WasLive(const LeverSetting& setting) const;
  // Returns the epoch in which the setting is live, or 0 when it names no lever. ABORTED, naming
  // the levers and the epoch, when somebody else changed levers since.
  absl::StatusOr<uint64_t> Apply(const LeverSetting& setting);
  // The last epoch that is known to be the loan's.
  uint64_t epoch() const { return epoch_; }
  // Levers that have another value than the loan gave them stay as they are: ABORTED names them.
  // Any error names the levers that were not turned back, their values and the command that does
  // it. Takes a few seconds at most, and the node is asked nothing afterwards. Without it nothing
  // is turned back.
  absl::Status GiveBack();

 private:
  absl::Status TurnBack();
  // The error with what the levers are left at; OK when they have the values from before, as the
  // node says or, where it does not answer, by its last answer.
  absl::Status LeftTurned(const absl::Status& why) const;
  // The command line that gives levers the values from before.
  std::string SetsBack(const LeverValues& levers) const;
  LeverLoan(StepNode& node, LeverValues before, uint64_t epoch)
      : node_(&node), before_(std::move(before)), set_(before_), epoch_(epoch) {}
  // Whether a lever's live value is one that the loan gave it, or the one from before.
  bool Ours(const std::string& name, const std::string& live) const;
  // "m16_tc is all, not off", of the levers that somebody else turned; empty when none.
  std::string Others(const LiveLevers& live) const;

  StepNode* node_;
  LeverValues before_;
  LeverValues set_;    // what the loan gave its levers last
  LeverValues tried_;  // what a call asked for whose outcome is not known
  uint64_t epoch_;
  bool turned_ = false;
};

}  // namespace fulcrum::cli

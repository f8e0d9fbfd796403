// Named sets of lever values on the command line, and levers that are turned for a while and then
// turned back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/step_node.h"

namespace fulcrum::cli {

struct LeverSetting {
  std::string name;
  LeverValues values;  // may be empty: the levers as they are
};

// "m16_tc=attn_qkv,attn_o; max_batch_rows=8", any number of them.
absl::StatusOr<LeverValues> ParseLeverValues(const std::string& text);
// The same behind "NAME:"; without it the text is the name.
absl::StatusOr<LeverSetting> ParseLeverSetting(const std::string& text);

// Turns levers and, in the end, gives those it touched the values they had.
class LeverLoan {
 public:
  // Notes the values of all levers that `settings` name. Their settings become complete: a lever
  // that only others name has the value it had.
  static absl::StatusOr<LeverLoan> Take(StepNode& node, std::vector<LeverSetting>& settings);

  // Whether the setting was live when the loan was taken.
  bool WasLive(const LeverSetting& setting) const;
  // Returns the epoch in which the setting is live, or 0 when it names no lever.
  absl::StatusOr<uint64_t> Apply(const LeverSetting& setting);
  // What could not be restored is the caller's to tell. Without it nothing is turned back.
  absl::Status GiveBack();

 private:
  LeverLoan(StepNode& node, LeverValues before) : node_(&node), before_(std::move(before)) {}
  StepNode* node_;
  LeverValues before_;
  bool turned_ = false;
};

}  // namespace fulcrum::cli

// See lever_set.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/lever_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fulcrum::cli {
namespace {

constexpr char kReason[] = "decode steps of `fulcrum` measure this setting";

std::string Trimmed(std::string_view text) {
  return std::string(absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size())));
}

}  // namespace

absl::StatusOr<LeverValues> ParseLeverValues(const std::string& text) {
  LeverValues values;
  const std::vector<std::string> parts = absl::StrSplit(text, ';', absl::SkipWhitespace());
  for (const std::string& part : parts) {
    const size_t equals = part.find('=');
    const std::string name = Trimmed(part.substr(0, equals));
    if (equals == part.npos || name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("levers \"", text, "\": expected NAME=VALUE, separated by ';', got \"",
                       Trimmed(part), "\""));
    }
    if (!values.emplace(name, Trimmed(part.substr(equals + 1))).second) {
      return absl::InvalidArgumentError(absl::StrCat("levers \"", text, "\": ", name, " is twice"));
    }
  }
  return values;
}

absl::StatusOr<LeverSetting> ParseLeverSetting(const std::string& text) {
  const size_t colon = text.find(':');
  const bool named = colon != text.npos && colon < text.find('=');
  LeverSetting setting{.name = Trimmed(named ? text.substr(0, colon) : text), .values = {}};
  if (setting.name.empty()) {
    return absl::InvalidArgumentError("a lever set is empty: expected NAME:LEVER=VALUE");
  }
  auto values = ParseLeverValues(named ? text.substr(colon + 1) : text);
  if (!values.ok()) return values.status();
  setting.values = *std::move(values);
  return setting;
}

absl::StatusOr<LeverLoan> LeverLoan::Take(StepNode& node, std::vector<LeverSetting>& settings) {
  const auto live = node.Levers();
  if (!live.ok()) return live.status();
  LeverValues before;
  for (const LeverSetting& setting : settings) {
    for (const auto& [name, value] : setting.values) {
      const auto found = live->find(name);
      if (found == live->end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("lever set \"", setting.name, "\": no lever \"", name, "\""));
      }
      before.insert(*found);
    }
  }
  for (LeverSetting& setting : settings) setting.values.insert(before.begin(), before.end());
  return LeverLoan(node, std::move(before));
}

bool LeverLoan::WasLive(const LeverSetting& setting) const {
  return std::all_of(setting.values.begin(), setting.values.end(),
                     [this](const auto& value) { return before_.at(value.first) == value.second; });
}

absl::StatusOr<uint64_t> LeverLoan::Apply(const LeverSetting& setting) {
  if (setting.values.empty()) return 0;
  turned_ = true;
  return node_->SetLevers(setting.values, absl::StrCat(kReason, ": ", setting.name));
}

absl::Status LeverLoan::GiveBack() {
  if (!turned_) return absl::OkStatus();
  turned_ = false;
  return node_->SetLevers(before_, "back to what it was before the decode steps").status();
}

}  // namespace fulcrum::cli

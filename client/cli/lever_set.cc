// See lever_set.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/lever_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/text.h"

namespace fulcrum::cli {
namespace {

// How long the look at what is live may take when turning back failed.
constexpr absl::Duration kLastLook = absl::Seconds(1);

constexpr char kReason[] = "decode steps of `fulcrum` measure this setting";

std::string Trimmed(std::string_view text) {
  return std::string(absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size())));
}

}  // namespace

absl::Status WithMessage(const absl::Status& status, const std::string& message) {
  absl::Status out(status.code(), message);
  // Advice depends on whether the node said it, which is a payload.
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { out.SetPayload(type, payload); });
  return out;
}

absl::StatusOr<LeverValues> ParseLeverValues(const std::string& text) {
  if (absl::Status s = CheckUtf8("levers", text); !s.ok()) return s;
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
  if (absl::Status s = CheckUtf8("--sets", text); !s.ok()) return s;
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
      const auto found = live->values.find(name);
      if (found == live->values.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("lever set \"", setting.name, "\": no lever \"", name, "\""));
      }
      before.insert(*found);
    }
  }
  for (LeverSetting& setting : settings) setting.values.insert(before.begin(), before.end());
  return LeverLoan(node, std::move(before), live->epoch);
}

bool LeverLoan::WasLive(const LeverSetting& setting) const {
  return std::all_of(setting.values.begin(), setting.values.end(),
                     [this](const auto& value) { return before_.at(value.first) == value.second; });
}

bool LeverLoan::Ours(const std::string& name, const std::string& live) const {
  const auto tried = tried_.find(name);
  return live == set_.at(name) || live == before_.at(name) ||
         (tried != tried_.end() && live == tried->second);
}

std::string LeverLoan::Others(const LiveLevers& live) const {
  std::string others;
  for (const auto& [name, value] : set_) {
    const auto found = live.values.find(name);
    if (found == live.values.end() || Ours(name, found->second)) continue;
    absl::StrAppend(&others, others.empty() ? "" : "; ", "lever ", name, " is ", found->second,
                    ", this command had it at ", value);
  }
  return others;
}

absl::StatusOr<uint64_t> LeverLoan::Apply(const LeverSetting& setting) {
  if (setting.values.empty()) return 0;
  const auto set =
      node_->SetLevers(setting.values, epoch_, absl::StrCat(kReason, ": ", setting.name));
  if (set.ok()) {
    turned_ = true;
    // As the node writes them: "all" may be "all:one_pass", and is compared with what is live
    // later.
    for (auto& [name, value] : set_) {
      if (const auto live = set->values.find(name); live != set->values.end()) value = live->second;
    }
    epoch_ = set->epoch;
    return epoch_;
  }
  if (!absl::IsAborted(set.status())) {
    // The node may have done it although its answer did not come.
    turned_ = true;
    tried_ = setting.values;
    return set.status();
  }
  const auto live = node_->Levers();
  if (!live.ok()) return set.status();
  // A lever whose value is the loan's or its old one may still be the other change's.
  std::string levers = Others(*live);
  if (levers.empty()) {
    for (const auto& [name, value] : setting.values) {
      absl::StrAppend(&levers, levers.empty() ? "lever " : ", ", name, " is ",
                      live->values.at(name));
    }
  }
  return absl::AbortedError(absl::StrCat("somebody else changed levers: epoch ", live->epoch,
                                         " is live, this command's last was ", epoch_, " (", levers,
                                         "); set \"", setting.name, "\" was not turned on"));
}

std::string LeverLoan::SetsBack(const LeverValues& levers) const {
  std::string command = absl::StrCat("`fulcrum --target ", node_->Description(), " levers set");
  for (const auto& [name, value] : levers) {
    absl::StrAppend(&command, " '", name, "=", before_.at(name), "'");
  }
  return command + "`";
}

absl::Status LeverLoan::LeftTurned(const absl::Status& why) const {
  // The answer may be what was lost, or what the node refused: it knows best what is live.
  const auto live = node_->Levers();
  LeverValues left;
  for (const auto& [name, before] : before_) {
    std::string value = set_.at(name);
    if (const auto tried = tried_.find(name); tried != tried_.end()) value = tried->second;
    if (live.ok()) {
      if (const auto found = live->values.find(name); found != live->values.end()) {
        value = found->second;
      }
    }
    if (value != before) left[name] = value;
  }
  if (left.empty()) return absl::OkStatus();
  std::string message = absl::StrCat(why.message(), "; not turned back: ");
  for (const auto& [name, value] : left) {
    absl::StrAppend(&message, name == left.begin()->first ? "" : ", ", "lever ", name,
                    live.ok() ? " is " : " may still be ", value);
  }
  absl::StrAppend(&message, "; ", SetsBack(left), " sets what was before");
  return WithMessage(why, message);
}

absl::Status LeverLoan::GiveBack() {
  if (!turned_) return absl::OkStatus();
  turned_ = false;
  const absl::Time start = absl::Now();
  node_->EndBy(start + kTurnBack);
  absl::Status status = TurnBack();
  if (status.ok()) return status;
  node_->EndBy(start + kTurnBack + kLastLook);
  return LeftTurned(status);
}

absl::Status LeverLoan::TurnBack() {
  constexpr char kBack[] = "back to what it was before the decode steps";
  absl::Status status = node_->SetLevers(before_, epoch_, kBack).status();
  // Epochs go on for other reasons too (a canary, levers that are not the loan's): what still has
  // the loan's value is turned back, in a few attempts while changes come in between.
  for (int attempt = 0; absl::IsAborted(status) && attempt < 5; ++attempt) {
    const auto live = node_->Levers();
    if (!live.ok()) return live.status();
    LeverValues ours;
    for (const auto& [name, value] : before_) {
      const auto found = live->values.find(name);
      if (found != live->values.end() && found->second != value && Ours(name, found->second)) {
        ours[name] = value;
      }
    }
    if (!ours.empty()) status = node_->SetLevers(ours, live->epoch, kBack).status();
    if (!ours.empty() && !status.ok()) continue;
    const std::string others = Others(*live);
    if (others.empty()) return absl::OkStatus();
    return absl::AbortedError(
        absl::StrCat("somebody else changed levers: ", others, " (epoch ", live->epoch, ")"));
  }
  return status;
}

}  // namespace fulcrum::cli

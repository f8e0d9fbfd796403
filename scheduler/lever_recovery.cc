// See lever_recovery.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_recovery.h"

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"

namespace fulcrum {
namespace {

struct Kept {
  std::optional<std::string> set;   // by RPC
  std::optional<std::string> last;  // what ran at last, wherever it came from
};

}  // namespace

LeverRecovery RecoverLevers(const LeverSnapshot& configured, const std::vector<LeverStep>& journal,
                            absl::Time now) {
  LeverRecovery out{.levers = configured};
  std::array<Kept, kLeverCount> kept;
  LeverStep canary;  // the one that was running, if any
  for (const LeverStep& step : journal) {
    const LeverCause cause = step.front().cause;
    if (cause == LeverCause::kCanaryStart) canary = step;
    if (step.front().canary != 0 && cause != LeverCause::kCanaryStart) canary.clear();
    for (const LeverEvent& event : step) {
      out.history.push_back(event);
      out.levers.epoch = event.epoch;
      const LeverInfo* info = FindLever(event.lever);
      if (info == nullptr) continue;
      Kept& lever = kept[static_cast<size_t>(info->lever)];
      if (cause == LeverCause::kSet || cause == LeverCause::kPromote) lever.set = event.to;
      if (cause != LeverCause::kCanaryStart) lever.last = event.to;
    }
  }

  const auto add = [&](LeverStep step) {
    ++out.levers.epoch;
    for (LeverEvent& event : step) {
      event.epoch = out.levers.epoch;
      event.time = now;
      event.actor = "node";
      out.history.push_back(event);
    }
    out.steps.push_back(std::move(step));
  };
  if (!canary.empty()) {
    for (LeverEvent& event : canary) {
      std::swap(event.from, event.to);
      event.cause = LeverCause::kRevert;
      event.reason = "the node restarted";
      event.evidence = "the node ended while the canary ran";
    }
    add(canary);
  }

  LeverStep start;
  for (const LeverInfo& info : LeverTable()) {
    const size_t index = static_cast<size_t>(info.lever);
    const Kept& lever = kept[index];
    if (lever.set.has_value()) {
      if (out.levers.latched[index]) {
        if (configured.levers.Print(info.lever) != *lever.set) {
          out.warnings.push_back(
              absl::StrFormat("lever %s is latched to '%s'; the journal's '%s' is not used",
                              info.name, configured.levers.Print(info.lever), *lever.set));
        }
      } else if (absl::Status s = out.levers.levers.Set(info.name, *lever.set); s.ok()) {
        out.levers.source[index] = LeverSource::kJournal;
      } else {
        out.warnings.push_back(absl::StrFormat("the journal's value of a lever is not used: %s",
                                               std::string(s.message())));
      }
    }
    const std::string value = out.levers.levers.Print(info.lever);
    if (!lever.last.has_value() && out.levers.source[index] == LeverSource::kBuiltIn) continue;
    const std::string last = lever.last.value_or(LeverSet().Print(info.lever));
    if (value == last) continue;
    start.push_back({.lever = std::string(info.name),
                     .from = last,
                     .to = value,
                     .source = out.levers.source[index],
                     .reason = "the node started",
                     .cause = LeverCause::kStart});
  }
  if (!start.empty()) add(std::move(start));
  return out;
}

}  // namespace fulcrum

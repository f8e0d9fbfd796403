// Lever values from every source a node has at start, in rising order, and the profile table.
// SPDX-License-Identifier: Apache-2.0
#include "service/lever_sources.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/ladder/lever_aliases.h"
#include "kernels/ladder/levers.h"
#include "scheduler/lever_recovery.h"

namespace fulcrum::service {
namespace {

constexpr char kLatchVariable[] = "FULCRUM_LATCHED_LEVERS";

// A row moves only with a measurement of kernels/bench for that kind of device.
constexpr ProfileLever kProfiles[] = {
    {"fast", "cpu", "m16_tc", "all:one_pass",
     "block-fold arms: one fold a 128-K block, fewer operations a weight than the exact order"},
    {"fast", "cuda", "m16_tc", "all:one_pass",
     "tensor-core arms: one pass over the weights for up to 32 rows"},
};

absl::Status Apply(std::string_view lever, std::string_view value, LeverSource source,
                   const std::string& where, LeverSnapshot* snapshot) {
  if (absl::Status s = snapshot->levers.Set(lever, value); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(where, ": ", s.message()));
  }
  snapshot->source[static_cast<size_t>(FindLever(lever)->lever)] = source;
  return absl::OkStatus();
}

absl::Status Latch(std::string_view lever, const std::string& where, LeverSnapshot* snapshot) {
  const LeverInfo* info = FindLever(lever);
  if (info == nullptr) {
    std::vector<std::string> known;
    for (const LeverInfo& row : LeverTable()) known.emplace_back(row.name);
    return absl::InvalidArgumentError(absl::StrFormat("%s: no lever '%s'; levers are: %s", where,
                                                      lever, absl::StrJoin(known, ", ")));
  }
  snapshot->latched[static_cast<size_t>(info->lever)] = true;
  return absl::OkStatus();
}

}  // namespace

std::span<const ProfileLever> ProfileTable() { return kProfiles; }

absl::StatusOr<LeverSnapshot> BuildLevers(const Config& config, std::string_view backend,
                                          const std::map<std::string, std::string>& environment) {
  LeverSnapshot snapshot;
  for (const ProfileLever& row : kProfiles) {
    if (row.profile != config.profile || row.backend != backend) continue;
    const std::string where = absl::StrCat("profile ", config.profile);
    if (absl::Status s = Apply(row.lever, row.value, LeverSource::kProfile, where, &snapshot);
        !s.ok()) {
      return s;
    }
  }
  for (const auto& [lever, value] : config.levers) {
    const std::string where = Located(config, absl::StrFormat("levers[%s]", lever));
    if (absl::Status s = Apply(lever, value, LeverSource::kConfig, where, &snapshot); !s.ok()) {
      return s;
    }
  }
  const absl::StatusOr<std::vector<AliasedLever>> aliased = TranslateAliases(environment);
  if (!aliased.ok()) return aliased.status();
  for (const AliasedLever& entry : *aliased) {
    if (absl::Status s =
            Apply(entry.lever, entry.value, LeverSource::kEnvironment, entry.variable, &snapshot);
        !s.ok()) {
      return s;
    }
  }

  for (size_t i = 0; i < config.latched_levers.size(); ++i) {
    const std::string where = Located(config, absl::StrFormat("latched_levers[%d]", i));
    if (absl::Status s = Latch(config.latched_levers[i], where, &snapshot); !s.ok()) return s;
  }
  if (const auto it = environment.find(kLatchVariable); it != environment.end()) {
    for (absl::string_view piece : absl::StrSplit(it->second, ',')) {
      const std::string name(absl::StripAsciiWhitespace(piece));
      if (name.empty()) continue;
      if (absl::Status s = Latch(name, kLatchVariable, &snapshot); !s.ok()) return s;
    }
  }
  return snapshot;
}

absl::StatusOr<NodeLevers> StartLevers(const Config& config, std::string_view backend,
                                       const std::map<std::string, std::string>& environment) {
  auto configured = BuildLevers(config, backend, environment);
  if (!configured.ok()) return configured.status();
  if (config.lever_journal.empty()) {
    return NodeLevers{.start = *std::move(configured),
                      .journal = nullptr,
                      .history = {},
                      .unwritten = {},
                      .why_unwritten = {},
                      .warnings = {}};
  }
  auto opened = LeverJournal::Open(config.lever_journal);
  if (!opened.ok()) return opened.status();
  LeverRecovery recovery = RecoverLevers(*configured, opened->steps, absl::Now());
  NodeLevers levers{.start = recovery.levers,
                    .journal = std::move(opened->journal),
                    .history = std::move(recovery.history),
                    .unwritten = {},
                    .why_unwritten = {},
                    .warnings = std::move(recovery.warnings)};
  for (LeverStep& step : recovery.steps) {
    // What runs is known without the record: a full disk must not keep a node down. Its epoch must
    // not be another's: the store takes no change before the record is written.
    if (levers.why_unwritten.ok()) levers.why_unwritten = levers.journal->Append(step);
    if (!levers.why_unwritten.ok()) levers.unwritten.push_back(std::move(step));
  }
  if (opened->dropped_bytes > 0) {
    levers.warnings.push_back(
        absl::StrFormat("%s: dropped line %d, its last %d bytes: the beginning of a record, as a "
                        "crash leaves it of a change that was not yet acknowledged",
                        config.lever_journal, opened->steps.size() + 1, opened->dropped_bytes));
  }
  return levers;
}

std::string DescribeProfile(std::string_view profile, std::string_view backend) {
  std::string text;
  for (const ProfileLever& row : kProfiles) {
    if (row.profile != profile || row.backend != backend) continue;
    absl::StrAppendFormat(&text, "%s%s=%s (%s)", text.empty() ? "" : "; ", row.lever, row.value,
                          row.reason);
  }
  if (text.empty()) return text;
  return absl::StrFormat("profile %s on %s opens %s", profile, backend, text);
}

}  // namespace fulcrum::service

// The levers a node starts with: built-in < profile < configuration < environment < journal. Later
// changes (RPC) are scheduler/lever_store.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/lever_journal.h"
#include "scheduler/lever_store.h"
#include "service/config.h"

namespace fulcrum::service {

// What a profile opens on one kind of device, and why; the node says it at start.
struct ProfileLever {
  std::string_view profile;  // "fast"
  std::string_view backend;  // "cpu", "cuda"
  std::string_view lever, value;
  std::string_view reason;
};
std::span<const ProfileLever> ProfileTable();

// `backend` is the name of the backend found ("cpu", "cuda"); `environment` is the process's, read
// by main: spellings as in kernels/ladder/lever_aliases.h. Levers named in latched_levers, or in
// the variable FULCRUM_LATCHED_LEVERS (names, comma-separated), keep the value that these sources
// give: no RPC changes them. Errors name the source, and the place or variable.
absl::StatusOr<LeverSnapshot> BuildLevers(const Config& config, std::string_view backend,
                                          const std::map<std::string, std::string>& environment);

// BuildLevers and, where one is configured, the journal on top.
struct NodeLevers {
  LeverSnapshot start;
  std::unique_ptr<LeverJournal> journal;  // null: none is configured
  std::vector<LeverEvent> history;        // of earlier lives, and of the start itself
  std::vector<LeverStep> unwritten;       // what the start did and the journal did not take
  absl::Status why_unwritten;
  std::vector<std::string> warnings;
};
// Errors of the journal as scheduler/lever_journal.h.
absl::StatusOr<NodeLevers> StartLevers(const Config& config, std::string_view backend,
                                       const std::map<std::string, std::string>& environment);

// One line for the log at start: "profile fast on cpu opens m16_tc=all:one_pass (...)"; empty when
// the profile opens nothing there.
std::string DescribeProfile(std::string_view profile, std::string_view backend);

}  // namespace fulcrum::service

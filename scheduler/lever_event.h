// One change of one lever: what the store tells, the journal keeps and WatchLevers streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace fulcrum {

// Rising precedence; a latched value (configuration or environment) beats what comes after.
// kJournal: set by RPC in an earlier life of the node.
enum class LeverSource : uint8_t { kBuiltIn, kProfile, kConfig, kEnvironment, kJournal, kRpc };
std::string_view Name(LeverSource source);

// Why a lever, or what runs under it, changed.
enum class LeverCause : uint8_t {
  kStart,        // the node started with another value than it last had
  kSet,          // SetLevers
  kCanaryStart,  // a share of traffic runs `to`, the rest still `from`
  kPromote,      // the canary's value became everybody's
  kRevert,       // a guard, the end of the time or a restart ended the canary: all run `to` again
  kAbort,        // an operator ended it
};
inline constexpr std::array kAllLeverCauses = {LeverCause::kStart,       LeverCause::kSet,
                                               LeverCause::kCanaryStart, LeverCause::kPromote,
                                               LeverCause::kRevert,      LeverCause::kAbort};
std::string_view Name(LeverCause cause);

struct LeverEvent {
  uint64_t epoch = 0;  // of the live snapshot after it; all events of one step share it
  absl::Time time = {};
  std::string lever = {}, from = {}, to = {};
  LeverSource source = LeverSource::kRpc;
  std::string actor = {}, reason = {};
  LeverCause cause = LeverCause::kSet;
  uint64_t canary = 0;        // the canary it belongs to; 0: none
  std::string evidence = {};  // promote, revert: what was measured, one line

  friend bool operator==(const LeverEvent&, const LeverEvent&) = default;
};

// The events of one epoch, in table order: they take effect together or not at all.
using LeverStep = std::vector<LeverEvent>;

}  // namespace fulcrum

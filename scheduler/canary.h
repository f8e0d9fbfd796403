// One canary from start to end: what was seen of both sides, the guards over it, and what follows.
// Pure: time and events arrive as arguments, whoever owns it acts on Decide (canary_control.h).
// What runs the candidate is canary_split.h's, which values it has the lever store's.
//
//   running --breach--> reverted            holding --breach--> reverted
//      |  \--operator--> promoted, aborted     |  \--operator--> promoted, aborted
//      +--time over, enough compared: promoted (by itself) or holding
//      +--time over, too little compared: reverted
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/canary_comparison.h"
#include "scheduler/canary_spec.h"
#include "scheduler/observer.h"

namespace fulcrum {

enum class CanaryState : uint8_t { kRunning, kHolding, kPromoted, kReverted, kAborted };
inline constexpr std::array kAllCanaryStates = {CanaryState::kRunning, CanaryState::kHolding,
                                                CanaryState::kPromoted, CanaryState::kReverted,
                                                CanaryState::kAborted};
std::string_view Name(CanaryState state);

// What one side did.
struct CanarySide {
  int64_t batches = 0, rows = 0;
  int64_t failed_launches = 0, declined = 0;
  int64_t shadow_passed = 0, shadow_failed = 0, shadow_dropped = 0;
};

// Everything to show of a canary.
struct CanaryReport {
  uint64_t id = 0;
  CanarySpec spec = {};
  CanaryState state = CanaryState::kRunning;
  std::vector<LeverChange> control = {};  // the values that the changes would replace
  uint64_t epoch = 0, control_epoch = 0;
  absl::Time started = {}, ended = absl::InfiniteFuture(), last_heartbeat = {};
  std::string evidence = {};  // why it ended, or where it stands
  bool not_kept = false;      // its end could not be journalled when it came
  CanarySide control_side = {}, canary_side = {};
  int64_t comparable_control = 0, comparable_canary = 0;
  std::vector<CanaryComparison::Row> rows = {};
};

class Canary {
 public:
  Canary(uint64_t id, CanarySpec spec, absl::Time started);

  uint64_t id() const { return id_; }
  const CanarySpec& spec() const { return spec_; }
  CanaryState state() const { return state_; }
  bool ended() const { return state_ != CanaryState::kRunning && state_ != CanaryState::kHolding; }

  void OnBatch(const BatchEvent& event, absl::Time now);
  void OnShadow(const ShadowEvent& event);
  void OnIncident(const Incident& incident);
  void OnHeartbeat(absl::Time now) { last_heartbeat_ = now; }

  enum class Action : uint8_t { kNone, kRevert, kPromote, kHold };
  struct Decision {
    Action action = Action::kNone;
    std::string evidence = {};
  };
  // A breach is decided at once; success when the time is over. After kHold the caller moves on to
  // kHolding by Hold(); after the others it ends the canary.
  Decision Decide(absl::Time now) const;
  // When Decide may have another answer although nothing happened.
  absl::Time NextLook() const;
  // Why an operator may not promote it yet: FAILED_PRECONDITION.
  absl::Status MayPromote() const;

  void Hold() { state_ = CanaryState::kHolding; }
  void End(CanaryState state, std::string evidence, absl::Time now);

  std::string Summary() const;  // where it stands, one line
  // Without what the lever store knows (control values, epochs).
  CanaryReport Report() const;

 private:
  std::string Breach() const;  // empty: none

  const uint64_t id_;
  const CanarySpec spec_;
  const absl::Time started_;
  CanaryState state_ = CanaryState::kRunning;
  absl::Time last_heartbeat_, ended_ = absl::InfiniteFuture();
  CanarySide control_, canary_;
  CanaryComparison comparison_;
  int64_t unaffected_ = 0;  // batches of the canary's side that ran what the control would have
  std::string last_failure_, last_shadow_, last_decline_, incident_, evidence_;
};

}  // namespace fulcrum

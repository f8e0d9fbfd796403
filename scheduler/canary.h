// One canary from start to end: what was seen of both sides, the guards over it, and what follows.
// Pure: time and events arrive as arguments, whoever owns it acts on Decide (canary_control.h).
// What runs the candidate is canary_split.h's, which values it has the lever store's.
//
//   running --breach--> reverted            holding --breach--> reverted
//      |  \--operator--> promoted, aborted     |  \--operator--> promoted, aborted
//      +--time over, enough compared: promoted (by itself) or holding
//      +--time over, too little compared: reverted
//
// Evidence is of the weights and arms that it was gathered on. When a weight that it is about is
// replaced, or a lever that chooses arms is set, it is put aside and gathering begins again with
// its time, also where the canary was holding. What had gone wrong until then still counts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/canary_comparison.h"
#include "scheduler/canary_share.h"
#include "scheduler/canary_spec.h"
#include "scheduler/canary_versions.h"
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
  int64_t clients = 0;  // whose batches are compared, up to kMostCanaryClients
};

// Everything to show of a canary.
struct CanaryReport {
  uint64_t id = 0;
  CanarySpec spec = {};
  CanaryState state = CanaryState::kRunning;
  std::vector<LeverChange> control = {};  // the values that the changes would replace
  uint64_t epoch = 0, control_epoch = 0;
  absl::Time started = {}, ended = absl::InfiniteFuture(), last_heartbeat = {};
  absl::Time evidence_since = {};            // what is below is from then on
  std::vector<CanaryRestart> restarts = {};  // the newest few
  int64_t restart_count = 0;
  uint64_t salt = 0;           // of the assignment to sides
  CanaryTraffic traffic = {};  // of the minute before it started
  std::string evidence = {};   // why it ended, or where it stands
  bool not_kept = false;       // its end could not be journalled when it came
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
  // A version of a weight serves; what it replaced does no more.
  void OnServes(const WeightVersion& version, absl::Time now);
  void OnUnloads(const std::string& shard) { versions_.Gone(shard); }
  // From this epoch on other levers choose other arms (CanarySplit::arms_since).
  void OnArms(uint64_t since, absl::Time now);
  // How the traffic of its side has outgrown its share (canary_share.h); empty: it has not.
  void OnTraffic(std::string outgrown) { outgrown_ = std::move(outgrown); }
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
  int64_t restarts() const { return restart_count_; }
  // Without what the lever store and the traffic know (control values, epochs, salt).
  CanaryReport Report() const;

 private:
  // What begins anew when evidence does.
  struct Evidence {
    Evidence(const CanaryGuards& guards, absl::Time now)
        : since(now), comparison(guards.kernel_p50, guards.kernel_p99) {}
    absl::Time since;
    CanarySide control = {}, canary = {};
    absl::flat_hash_set<uint64_t> control_clients = {}, canary_clients = {};
    CanaryComparison comparison;
    int64_t unaffected = 0;  // batches of the canary's side that ran what the control would have
  };

  // Notes the weights of a batch. False: one of them, or its arms, are no more, and nothing but a
  // failure still counts.
  bool NoteVersions(const BatchEvent& event, absl::Time now);
  void CountFailure(const BatchEvent& event);
  // Whether the batch ran another arm than asked, and another than the control's would have been.
  struct Choice {
    bool declined = false, differs = false;
  };
  Choice LookAtArms(const BatchEvent& event);
  void Compare(const BatchEvent& event, absl::Time now);
  void BeginAgain(CanaryRestart restart);
  std::string Breach() const;       // empty: none
  std::string RestartNote() const;  // empty, or behind any evidence
  CanarySide Counts(bool canary) const;

  static constexpr size_t kRestartsKept = 8;

  const uint64_t id_;
  const CanarySpec spec_;
  const absl::Time started_;
  CanaryState state_ = CanaryState::kRunning;
  absl::Time last_heartbeat_, ended_ = absl::InfiniteFuture();
  CanaryVersions versions_;
  uint64_t arms_since_ = 0;
  std::unique_ptr<Evidence> now_;
  std::vector<CanaryRestart> restarts_;
  int64_t restart_count_ = 0;
  // Of the canary's side since it started.
  int64_t failed_launches_ = 0, declined_ = 0, shadow_failed_ = 0;
  std::string last_failure_, last_shadow_, last_decline_, incident_, outgrown_, evidence_;
};

}  // namespace fulcrum

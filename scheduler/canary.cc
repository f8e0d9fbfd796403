// Counting, and the guards in the order in which a breach is told.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fulcrum {
namespace {

// Whether a lever of the canary chooses arms: then only batches that ran another arm than the
// control's say anything about it.
bool ChoosesArms(const CanarySpec& spec) {
  return std::any_of(spec.changes.begin(), spec.changes.end(), [](const LeverChange& change) {
    const LeverInfo* info = FindLever(change.lever);
    return info != nullptr && !info->gates.empty();
  });
}

void AddClients(std::span<const uint64_t> clients, absl::flat_hash_set<uint64_t>& to) {
  for (const uint64_t client : clients) {
    if (to.size() < static_cast<size_t>(kMostCanaryClients)) to.insert(client);
  }
}

}  // namespace

Canary::Canary(uint64_t id, CanarySpec spec, absl::Time started)
    : id_(id),
      spec_(std::move(spec)),
      started_(started),
      last_heartbeat_(started),
      now_(std::make_unique<Evidence>(spec_.guards, started)) {}

bool Canary::NoteVersions(const BatchEvent& event, absl::Time now) {
  OnArms(event.arms_since, now);
  if (event.lever_epoch < arms_since_) return false;
  bool any_new = false;
  for (const auto& shard : event.shards) {
    const CanaryVersions::Standing standing = versions_.Look(*shard, event.candidate);
    if (standing == CanaryVersions::Standing::kPast) return false;
    any_new |= standing == CanaryVersions::Standing::kNew;
  }
  if (!any_new) return true;
  for (const auto& shard : event.shards) OnServes(VersionOf(*shard), now);
  if (!event.status.ok()) return true;
  for (const auto& shard : event.shards) versions_.Ran(*shard, event.candidate);
  return true;
}

void Canary::BeginAgain(CanaryRestart restart) {
  restart.control_batches = now_->comparison.comparable(false);
  restart.canary_batches = now_->comparison.comparable(true);
  restart.shadow_passed = now_->canary.shadow_passed;
  now_ = std::make_unique<Evidence>(spec_.guards, restart.time);
  if (state_ == CanaryState::kHolding) state_ = CanaryState::kRunning;
  ++restart_count_;
  if (restarts_.size() == kRestartsKept) restarts_.erase(restarts_.begin());
  restarts_.push_back(std::move(restart));
}

void Canary::OnServes(const WeightVersion& version, absl::Time now) {
  if (std::optional<WeightVersion> before = versions_.Note(version); before.has_value()) {
    BeginAgain({.time = now, .before = *std::move(before), .after = version});
  }
}

void Canary::OnArms(uint64_t since, absl::Time now) {
  if (since <= arms_since_) return;
  arms_since_ = since;
  BeginAgain({.time = now, .lever_epoch = since});
}

void Canary::CountFailure(const BatchEvent& event) {
  ++(event.candidate ? now_->canary : now_->control).failed_launches;
  if (!event.candidate) return;
  ++failed_launches_;
  last_failure_ = std::string(event.status.message());
}

Canary::Choice Canary::LookAtArms(const BatchEvent& event) {
  Choice choice;
  for (size_t i = 0; i < event.ran.size(); ++i) {
    choice.differs |= event.ran[i] != event.control[i];
    if (event.asked[i] == nullptr) continue;
    choice.declined = true;
    if (event.candidate) {
      last_decline_ = absl::StrFormat("%s ran where %s was asked for", event.ran[i]->name,
                                      event.asked[i]->name);
    }
  }
  return choice;
}

void Canary::OnBatch(const BatchEvent& event, absl::Time now) {
  if (event.canary != id_) return;  // picked before it began
  if (!NoteVersions(event, now)) {
    if (!event.status.ok()) CountFailure(event);
    return;
  }
  CanarySide& side = event.candidate ? now_->canary : now_->control;
  ++side.batches;
  side.rows += event.rows;
  if (!event.status.ok()) {
    CountFailure(event);
    return;
  }
  const Choice choice = LookAtArms(event);
  side.declined += choice.declined;
  if (event.candidate) declined_ += choice.declined;
  if (event.candidate && !choice.differs && ChoosesArms(spec_)) {
    ++now_->unaffected;
    return;
  }
  AddClients(event.clients, event.candidate ? now_->canary_clients : now_->control_clients);
  Compare(event, now);
}

void Canary::Compare(const BatchEvent& event, absl::Time now) {
  const Shard& first = *event.shards.front();
  ComparisonCell cell{.device = first.backend,
                      .family = first.family,
                      .step = event.step,
                      .output_type = event.output_type,
                      .rows = event.rows};
  for (size_t i = 0; i < event.shards.size(); ++i) {
    const Shard& shard = *event.shards[i];
    cell.weights.push_back({shard.format(), shard.n(), shard.k(), event.control[i]});
  }
  now_->comparison.Add(cell, event.candidate ? event.ran.front() : nullptr,
                       event.candidate ? nullptr : event.asked.front(), event.kernel, now);
}

void Canary::OnShadow(const ShadowEvent& event) {
  if (event.canary != id_) return;
  const bool past =
      event.lever_epoch < arms_since_ ||
      versions_.Look(*event.shard, event.candidate) == CanaryVersions::Standing::kPast;
  CanarySide& side = event.candidate ? now_->canary : now_->control;
  switch (event.result) {
    case ShadowResult::kPass:
      side.shadow_passed += !past;
      return;
    case ShadowResult::kDropped:
      side.shadow_dropped += !past;
      return;
    case ShadowResult::kFail:
    case ShadowResult::kError:  // what cannot be checked is not trusted
      ++side.shadow_failed;
      if (!event.candidate) return;
      ++shadow_failed_;
      last_shadow_ = absl::StrFormat("%s on %s version %d: %s", event.arm->name, event.shard->name,
                                     event.shard->version, event.detail);
      return;
  }
}

void Canary::OnIncident(const Incident& incident) {
  if (!incident_.empty()) return;
  incident_ = absl::StrFormat(
      "wrong bits found by %s: shard %s version %d, arm %s on %s, column %d: expected %08x, found "
      "%08x",
      incident.what, incident.shard, incident.shard_version, incident.arm, incident.device,
      incident.column, incident.expected_bits, incident.found_bits);
}

std::string Canary::Breach() const {
  const CanaryGuards& guards = spec_.guards;
  if (!incident_.empty()) return incident_;
  if (shadow_failed_ > guards.max_shadow_failures) {
    return absl::StrFormat("%d shadow checks failed (limit %d): %s", shadow_failed_,
                           guards.max_shadow_failures, last_shadow_);
  }
  if (failed_launches_ > guards.max_failed_launches) {
    return absl::StrFormat("%d launches failed (limit %d): %s", failed_launches_,
                           guards.max_failed_launches, last_failure_);
  }
  if (declined_ > guards.max_declines) {
    return absl::StrFormat("%d batches declined the candidate (limit %d): %s", declined_,
                           guards.max_declines, last_decline_);
  }
  if (now_->comparison.finding().has_value()) return now_->comparison.finding()->text;
  return outgrown_;
}

std::string Canary::RestartNote() const {
  if (restarts_.empty()) return std::string();
  std::string note = restart_count_ == 1
                         ? std::string("; evidence began again once")
                         : absl::StrFormat("; evidence began again %d times", restart_count_);
  if (restarts_.size() < static_cast<size_t>(restart_count_)) {
    absl::StrAppendFormat(&note, ", the last %d", restarts_.size());
  }
  for (const CanaryRestart& restart : restarts_) {
    absl::StrAppend(&note, &restart == &restarts_.front() ? ": " : "; ", Describe(restart));
  }
  return note;
}

Canary::Decision Canary::Decide(absl::Time now) const {
  if (ended()) return {};
  if (const std::string breach = Breach(); !breach.empty()) {
    return {Action::kRevert, breach + RestartNote()};
  }
  if (now - last_heartbeat_ > spec_.guards.heartbeat) {
    return {Action::kRevert,
            absl::StrFormat("no heartbeat for %s", absl::FormatDuration(spec_.guards.heartbeat)) +
                RestartNote()};
  }
  if (state_ == CanaryState::kHolding || now < now_->since + spec_.duration) return {};
  if (const absl::Status may = MayPromote(); !may.ok()) {
    return {Action::kRevert, absl::StrFormat("the time is over: %s", std::string(may.message()))};
  }
  return {spec_.on_success == CanarySuccess::kPromote ? Action::kPromote : Action::kHold,
          Summary()};
}

absl::Time Canary::NextLook() const {
  if (ended()) return absl::InfiniteFuture();
  // Decide wants more than the heartbeat's time.
  const absl::Time lost = last_heartbeat_ + spec_.guards.heartbeat + absl::Milliseconds(1);
  if (state_ == CanaryState::kHolding) return lost;
  return std::min(lost, now_->since + spec_.duration);
}

absl::Status Canary::MayPromote() const {
  const int64_t canary = now_->comparison.comparable(true),
                control = now_->comparison.comparable(false);
  const int64_t least = spec_.guards.min_samples;
  if (canary < least || control < least) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%d canary and %d control batches could be compared, of %d a side that the "
                        "guards ask for%s",
                        canary, control, least,
                        now_->unaffected > 0
                            ? absl::StrFormat("; %d batches of the canary ran the control's arm: "
                                              "the candidate changes nothing for them",
                                              now_->unaffected)
                            : std::string()) +
        RestartNote());
  }
  const CanarySide canary_side = Counts(true), control_side = Counts(false);
  const int64_t clients = std::min(canary_side.clients, control_side.clients);
  if (spec_.guards.min_clients > 1 && clients < spec_.guards.min_clients) {
    return absl::FailedPreconditionError(
        absl::StrFormat("what was compared is of %d clients on the canary's side and %d on the "
                        "control's, of %d a side that the guards ask for",
                        canary_side.clients, control_side.clients, spec_.guards.min_clients) +
        RestartNote());
  }
  if (const std::optional<WeightVersion> untried = versions_.Untried(); untried.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrFormat(
            "no batch of the canary's side has run on %s %s, which replaced one that it "
            "had run on",
            untried->shard, Describe(*untried)) +
        RestartNote());
  }
  return absl::OkStatus();
}

void Canary::End(CanaryState state, std::string evidence, absl::Time now) {
  state_ = state;
  evidence_ = std::move(evidence);
  ended_ = now;
}

std::string Canary::Summary() const {
  const CanarySide canary = Counts(true), control = Counts(false);
  return absl::StrFormat(
             "%d canary against %d control batches compared, no breach, of %d and %d clients; "
             "shadow checks: %d passed, %d failed, %d dropped",
             now_->comparison.comparable(true), now_->comparison.comparable(false), canary.clients,
             control.clients, canary.shadow_passed, canary.shadow_failed, canary.shadow_dropped) +
         RestartNote();
}

CanarySide Canary::Counts(bool canary) const {
  CanarySide side = canary ? now_->canary : now_->control;
  side.clients =
      static_cast<int64_t>((canary ? now_->canary_clients : now_->control_clients).size());
  if (!canary) return side;
  side.failed_launches = failed_launches_;
  side.declined = declined_;
  side.shadow_failed = shadow_failed_;
  return side;
}

CanaryReport Canary::Report() const {
  return {.id = id_,
          .spec = spec_,
          .state = state_,
          .started = started_,
          .ended = ended_,
          .last_heartbeat = last_heartbeat_,
          .evidence_since = now_->since,
          .restarts = restarts_,
          .restart_count = restart_count_,
          .evidence = ended() ? evidence_ : Summary(),
          .control_side = Counts(false),
          .canary_side = Counts(true),
          .comparable_control = now_->comparison.comparable(false),
          .comparable_canary = now_->comparison.comparable(true),
          .rows = now_->comparison.Rows()};
}

}  // namespace fulcrum

// Counting, and the guards in the order in which a breach is told.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary.h"

#include <algorithm>
#include <utility>

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

}  // namespace

Canary::Canary(uint64_t id, CanarySpec spec, absl::Time started)
    : id_(id),
      spec_(std::move(spec)),
      started_(started),
      last_heartbeat_(started),
      comparison_(spec_.guards.kernel_p50, spec_.guards.kernel_p99) {}

void Canary::OnBatch(const BatchEvent& event, absl::Time now) {
  if (event.canary != id_) return;  // picked before it began
  CanarySide& side = event.candidate ? canary_ : control_;
  ++side.batches;
  side.rows += event.rows;
  if (!event.status.ok()) {
    ++side.failed_launches;
    if (event.candidate) last_failure_ = std::string(event.status.message());
    return;
  }
  bool declined = false, differs = false;
  for (size_t i = 0; i < event.ran.size(); ++i) {
    differs |= event.ran[i] != event.control[i];
    if (event.asked[i] == nullptr) continue;
    declined = true;
    if (event.candidate) {
      last_decline_ = absl::StrFormat("%s ran where %s was asked for", event.ran[i]->name,
                                      event.asked[i]->name);
    }
  }
  side.declined += declined;
  if (event.candidate && !differs && ChoosesArms(spec_)) {
    ++unaffected_;
    return;
  }
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
  comparison_.Add(cell, event.candidate ? event.ran.front() : nullptr,
                  event.candidate ? nullptr : event.asked.front(), event.kernel, now);
}

void Canary::OnShadow(const ShadowEvent& event) {
  if (event.canary != id_) return;
  CanarySide& side = event.candidate ? canary_ : control_;
  switch (event.result) {
    case ShadowResult::kPass:
      ++side.shadow_passed;
      return;
    case ShadowResult::kDropped:
      ++side.shadow_dropped;
      return;
    case ShadowResult::kFail:
    case ShadowResult::kError:  // what cannot be checked is not trusted
      ++side.shadow_failed;
      if (event.candidate) {
        last_shadow_ =
            absl::StrFormat("%s on %s: %s", event.arm->name, event.shard->name, event.detail);
      }
      return;
  }
}

void Canary::OnIncident(const Incident& incident) {
  if (!incident_.empty()) return;
  incident_ = absl::StrFormat(
      "wrong bits found by %s: shard %s, arm %s on %s, column %d: expected %08x, found %08x",
      incident.what, incident.shard, incident.arm, incident.device, incident.column,
      incident.expected_bits, incident.found_bits);
}

std::string Canary::Breach() const {
  const CanaryGuards& guards = spec_.guards;
  if (!incident_.empty()) return incident_;
  if (canary_.shadow_failed > guards.max_shadow_failures) {
    return absl::StrFormat("%d shadow checks failed (limit %d): %s", canary_.shadow_failed,
                           guards.max_shadow_failures, last_shadow_);
  }
  if (canary_.failed_launches > guards.max_failed_launches) {
    return absl::StrFormat("%d launches failed (limit %d): %s", canary_.failed_launches,
                           guards.max_failed_launches, last_failure_);
  }
  if (canary_.declined > guards.max_declines) {
    return absl::StrFormat("%d batches declined the candidate (limit %d): %s", canary_.declined,
                           guards.max_declines, last_decline_);
  }
  if (comparison_.finding().has_value()) return comparison_.finding()->text;
  return std::string();
}

Canary::Decision Canary::Decide(absl::Time now) const {
  if (ended()) return {};
  if (std::string breach = Breach(); !breach.empty()) return {Action::kRevert, std::move(breach)};
  if (now - last_heartbeat_ > spec_.guards.heartbeat) {
    return {Action::kRevert,
            absl::StrFormat("no heartbeat for %s", absl::FormatDuration(spec_.guards.heartbeat))};
  }
  if (state_ == CanaryState::kHolding || now < started_ + spec_.duration) return {};
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
  return std::min(lost, started_ + spec_.duration);
}

absl::Status Canary::MayPromote() const {
  const int64_t canary = comparison_.comparable(true), control = comparison_.comparable(false);
  const int64_t least = spec_.guards.min_samples;
  if (canary >= least && control >= least) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d canary and %d control batches could be compared, of %d a side that the guards ask for%s",
      canary, control, least,
      unaffected_ > 0 ? absl::StrFormat("; %d batches of the canary ran the control's arm: the "
                                        "candidate changes nothing for them",
                                        unaffected_)
                      : std::string()));
}

void Canary::End(CanaryState state, std::string evidence, absl::Time now) {
  state_ = state;
  evidence_ = std::move(evidence);
  ended_ = now;
}

std::string Canary::Summary() const {
  return absl::StrFormat(
      "%d canary against %d control batches compared, no breach; shadow checks: %d passed, %d "
      "failed, %d dropped",
      comparison_.comparable(true), comparison_.comparable(false), canary_.shadow_passed,
      canary_.shadow_failed, canary_.shadow_dropped);
}

CanaryReport Canary::Report() const {
  return {.id = id_,
          .spec = spec_,
          .state = state_,
          .started = started_,
          .ended = ended_,
          .last_heartbeat = last_heartbeat_,
          .evidence = ended() ? evidence_ : Summary(),
          .control_side = control_,
          .canary_side = canary_,
          .comparable_control = comparison_.comparable(false),
          .comparable_canary = comparison_.comparable(true),
          .rows = comparison_.Rows()};
}

}  // namespace fulcrum

// Incidents and faults.
// SPDX-License-Identifier: Apache-2.0
#include "service/node_events.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace fulcrum::service {

void NodeEvents::OnIncident(const Incident& incident) {
  metrics_.OnIncident(incident);
  log_.Error("incident: wrong bits", {{"found_by", incident.what},
                                      {"shard", incident.shard},
                                      {"version", incident.shard_version},
                                      {"hash", incident.shard_hash},
                                      {"device", incident.device},
                                      {"arm", incident.arm},
                                      {"column", incident.column},
                                      {"expected", absl::StrFormat("%08x", incident.expected_bits)},
                                      {"found", absl::StrFormat("%08x", incident.found_bits)},
                                      {"lever_epoch", incident.lever_epoch}});
  if (options_.stop_device_on_mismatch && health_.StopDevice(incident.device)) {
    log_.Error("device stopped", {{"device", incident.device}, {"why", "wrong bits"}});
  }
}

bool NodeEvents::MayWarn(std::string_view key, absl::Duration pause) {
  constexpr size_t kMost = 4096;  // shards come and go; what is forgotten is only told again sooner
  absl::MutexLock lock(&mu_);
  const absl::Time now = absl::Now();
  const auto known = next_warning_.find(key);
  if (known != next_warning_.end() && now < known->second) return false;
  if (next_warning_.size() >= kMost) next_warning_.clear();
  next_warning_[std::string(key)] = now + pause;
  return true;
}

void NodeEvents::OnAuditError(std::string_view shard, const absl::Status& why) {
  if (MayWarn(shard)) log_.Warn("audit could not run", {{"shard", shard}, {"error", why}});
}

void NodeEvents::OnShadow(const ShadowEvent& event) {
  metrics_.OnShadow(event);
  if (event.result != ShadowResult::kFail && event.result != ShadowResult::kError) return;
  if (!MayWarn(absl::StrCat("shadow ", std::string(event.arm->name)))) return;
  log_.Warn("shadow check failed", {{"shard", event.shard->name},
                                    {"version", event.shard->version},
                                    {"arm", event.arm->name},
                                    {"lever_epoch", event.lever_epoch},
                                    {"what", event.detail}});
}

void NodeEvents::OnIdentityHeader(HeaderUse use, const Peer& peer) {
  metrics_.IdentityHeader(use);
  if (use == HeaderUse::kUsed) return;
  if (told_header_[static_cast<size_t>(use)].exchange(true, std::memory_order_relaxed)) return;
  log_.Debug("identity header ignored", {{"why", Name(use)}, {"peer", peer.spoken_by}});
}

void NodeEvents::OnBundle(std::string_view path) {
  log_.Warn("bundle written", {{"path", path}, {"look", "fulcrum replay PATH"}});
}

void NodeEvents::LeverChanged(const LeverEvent& event) {
  log_.Info("lever changed", {{"lever", event.lever},
                              {"from", event.from},
                              {"to", event.to},
                              {"epoch", event.epoch},
                              {"actor", event.actor},
                              {"reason", event.reason},
                              {"cause", Name(event.cause)},
                              {"canary", event.canary},
                              {"evidence", event.evidence}});
}

void NodeEvents::CanaryChanged(const CanaryReport& report) {
  metrics_.SetCanary(report.state);
  // What the journal does not have, the next start cannot know.
  log_.Log(report.not_kept ? LogLevel::kError : LogLevel::kInfo, "canary",
           {{"id", report.id},
            {"state", Name(report.state)},
            {"share", report.spec.share},
            {"unit", Name(report.spec.unit)},
            {"evidence_since", absl::FormatTime(report.evidence_since, absl::UTCTimeZone())},
            {"evidence", report.evidence}});
}

void NodeEvents::OnLeverNotKept(const LeverStep& step, const absl::Status& why) {
  std::string levers;
  for (const LeverEvent& event : step) {
    absl::StrAppend(&levers, levers.empty() ? "" : " ", event.lever, "=", event.to);
  }
  const LeverEvent& first = step.front();
  log_.Error("lever change not in the journal", {{"levers", levers},
                                                 {"epoch", first.epoch},
                                                 {"cause", Name(first.cause)},
                                                 {"canary", first.canary},
                                                 {"error", why}});
}

void NodeEvents::OnException(Thrower thrower, const absl::Status& what) {
  metrics_.OnException(thrower, what);
  if (!MayWarn(absl::StrCat("exception ", std::string(Name(thrower))), absl::Seconds(10))) return;
  log_.Error("exception caught", {{"where", Name(thrower)}, {"what", what}});
}

void NodeEvents::OnLoopEnded(std::string_view device) {
  const std::string why =
      absl::StrCat("device ", std::string(device), ": a loop that serves it has ended");
  if (health_.SetStuck(device, why)) {
    log_.Error("device does not serve", {{"device", device}, {"why", why}});
  }
}

void NodeEvents::OnDeviceFault(std::string_view device, const absl::Status& status) {
  metrics_.OnDeviceFault(device, status);
  const bool lost = std::any_of(devices_.begin(), devices_.end(), [device](const Backend* b) {
    return b->device().id == device && !b->healthy();
  });
  if (!lost) {
    log_.Warn("launch failed", {{"device", device}, {"error", status}});
    return;
  }
  if (health_.StopDevice(device)) {
    log_.Error("device lost", {{"device", device}, {"error", status}});
  }
  options_.on_device_lost(absl::InternalError(
      absl::StrCat("device ", std::string(device), " was lost: ", status.message())));
}

}  // namespace fulcrum::service

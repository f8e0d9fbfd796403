// See canary_messages.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/canary_messages.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "service/grpc_status.h"
#include "service/proto_names.h"

namespace fulcrum::service {
namespace {

constexpr char kPrefix[] = "canaries/";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void SetTime(absl::Time time, google::protobuf::Timestamp* out) {
  const int64_t nanos = absl::ToUnixNanos(time);
  out->set_seconds(nanos / 1000000000);
  out->set_nanos(static_cast<int32_t>(nanos % 1000000000));
}

// One number alone stands for "no such guard": a limit that went wrong must not switch it off.
constexpr double kNotGuarded = -1;

absl::Status SetRatio(const char* field, double given, double* ratio) {
  if (given == 0) return absl::OkStatus();  // not set
  if (given == kNotGuarded) {
    *ratio = kInfinity;
    return absl::OkStatus();
  }
  if (!(given >= kLeastRatio && given <= kMostRatio)) {
    return InvalidField(field, absl::StrFormat("%g; expected a ratio from %g (as fast as the "
                                               "control) to %g, or %g for no such guard",
                                               given, kLeastRatio, kMostRatio, kNotGuarded));
  }
  *ratio = given;
  return absl::OkStatus();
}
double RatioMessage(double ratio) { return std::isfinite(ratio) ? ratio : kNotGuarded; }

void Fill(const CanarySide& side, int64_t comparable, v1::CanarySide* out) {
  out->set_batches(side.batches);
  out->set_rows(side.rows);
  out->set_comparable(comparable);
  out->set_failed_launches(side.failed_launches);
  out->set_declined(side.declined);
  out->set_shadow_passed(side.shadow_passed);
  out->set_shadow_failed(side.shadow_failed);
  out->set_shadow_dropped(side.shadow_dropped);
  out->set_clients(side.clients);
}

void Fill(const CanaryRestart& restart, v1::CanaryRestart* out) {
  SetTime(restart.time, out->mutable_time());
  out->set_shard(restart.after.shard);
  out->set_from_version(restart.before.version);
  out->set_to_version(restart.after.version);
  out->set_from_hash(restart.before.hash);
  out->set_to_hash(restart.after.hash);
  out->set_lever_epoch(restart.lever_epoch);
  out->set_control_batches(restart.control_batches);
  out->set_canary_batches(restart.canary_batches);
  out->set_shadow_passed(restart.shadow_passed);
}

std::string ArmName(const Arm* arm) { return arm == nullptr ? "" : std::string(arm->name); }

void Fill(const CanaryComparison::Row& row, v1::CanaryComparison* out) {
  out->set_family(ToProto(row.family));
  out->set_step(ToProto(row.step));
  out->set_rows_first(row.bucket.first);
  out->set_rows_last(row.bucket.last);
  out->set_control_asked(ArmName(row.control_asked));
  out->set_control_ran(ArmName(row.control_ran));
  out->set_canary_ran(ArmName(row.canary_ran));
  out->set_control_batches(row.control_batches);
  out->set_canary_batches(row.canary_batches);
  out->set_control_p50(row.control_p50);
  out->set_control_p99(row.control_p99);
  out->set_canary_p50(row.canary_p50);
  out->set_canary_p99(row.canary_p99);
  out->set_p50_evidence(row.p50_evidence);
  out->set_p99_evidence(row.p99_evidence);
}

void Fill(const std::vector<LeverChange>& changes,
          google::protobuf::RepeatedPtrField<v1::LeverAssignment>* out) {
  for (const LeverChange& change : changes) {
    v1::LeverAssignment* const assignment = out->Add();
    assignment->set_name(change.lever);
    assignment->set_value(change.value);
  }
}

}  // namespace

std::string CanaryName(uint64_t id) { return absl::StrCat(kPrefix, id); }

absl::StatusOr<uint64_t> ParseCanaryName(const std::string& name) {
  uint64_t id = 0;
  if (name.rfind(kPrefix, 0) == 0 && absl::SimpleAtoi(name.substr(sizeof(kPrefix) - 1), &id) &&
      id > 0) {
    return id;
  }
  return InvalidField("name", absl::StrFormat("%s; expected canaries/NUMBER, as StartCanary and "
                                              "ListLevers say it",
                                              Quoted(name)));
}

absl::StatusOr<CanarySpec> SpecOf(const v1::StartCanaryRequest& request, std::string actor) {
  CanarySpec spec{.changes = {}, .actor = std::move(actor), .reason = request.reason()};
  for (const v1::LeverAssignment& a : request.assignments()) {
    spec.changes.push_back({a.name(), a.value()});
  }
  spec.share = request.share();
  spec.allow_uneven = request.allow_uneven();
  if (request.unit() != v1::CANARY_UNIT_UNSPECIFIED) {
    const auto unit = FromProto(request.unit());
    if (!unit) return InvalidField("unit", absl::StrCat(request.unit(), " is not a unit"));
    spec.unit = *unit;
  }
  if (request.on_success() != v1::CANARY_SUCCESS_UNSPECIFIED) {
    const auto success = FromProto(request.on_success());
    if (!success) {
      return InvalidField("on_success", absl::StrCat(request.on_success(), " is not known"));
    }
    spec.on_success = *success;
  }
  const auto seconds = [](const char* field, double given, absl::Duration* out) -> absl::Status {
    if (!std::isfinite(given) || given < 0) {
      return InvalidField(
          field, absl::StrFormat("%g; expected a number of seconds, or 0 for the default", given));
    }
    if (given > 0) *out = absl::Seconds(given);
    return absl::OkStatus();
  };
  const v1::CanaryGuards& guards = request.guards();
  if (auto s = seconds("duration_seconds", request.duration_seconds(), &spec.duration); !s.ok()) {
    return s;
  }
  if (auto s =
          seconds("guards.heartbeat_seconds", guards.heartbeat_seconds(), &spec.guards.heartbeat);
      !s.ok()) {
    return s;
  }
  if (guards.min_samples() != 0) spec.guards.min_samples = guards.min_samples();
  if (guards.min_clients() != 0) spec.guards.min_clients = guards.min_clients();
  if (auto s = SetRatio("guards.kernel_p50", guards.kernel_p50(), &spec.guards.kernel_p50);
      !s.ok()) {
    return s;
  }
  if (auto s = SetRatio("guards.kernel_p99", guards.kernel_p99(), &spec.guards.kernel_p99);
      !s.ok()) {
    return s;
  }
  spec.guards.max_shadow_failures = guards.max_shadow_failures();
  spec.guards.max_failed_launches = guards.max_failed_launches();
  spec.guards.max_declines = guards.max_declines();
  if (absl::Status s = CheckCanary(spec); !s.ok()) {
    const std::string text(s.message());
    const size_t colon = text.find(": ");
    return InvalidField(text.substr(0, colon), text.substr(colon + 2));
  }
  return spec;
}

v1::Canary MessageOf(const CanaryReport& report) {
  v1::Canary out;
  const CanarySpec& spec = report.spec;
  out.set_name(CanaryName(report.id));
  out.set_state(ToProto(report.state));
  Fill(spec.changes, out.mutable_candidate());
  Fill(report.control, out.mutable_control());
  out.set_share(spec.share);
  out.set_unit(ToProto(spec.unit));
  out.set_duration_seconds(absl::ToDoubleSeconds(spec.duration));
  out.set_on_success(ToProto(spec.on_success));
  v1::CanaryGuards* const guards = out.mutable_guards();
  guards->set_min_samples(spec.guards.min_samples);
  guards->set_min_clients(spec.guards.min_clients);
  guards->set_kernel_p50(RatioMessage(spec.guards.kernel_p50));
  guards->set_kernel_p99(RatioMessage(spec.guards.kernel_p99));
  guards->set_max_shadow_failures(spec.guards.max_shadow_failures);
  guards->set_max_failed_launches(spec.guards.max_failed_launches);
  guards->set_max_declines(spec.guards.max_declines);
  if (spec.guards.heartbeat < absl::InfiniteDuration()) {
    guards->set_heartbeat_seconds(absl::ToDoubleSeconds(spec.guards.heartbeat));
  }
  out.set_actor(spec.actor);
  out.set_reason(spec.reason);
  out.set_epoch(report.epoch);
  out.set_control_epoch(report.control_epoch);
  SetTime(report.started, out.mutable_start_time());
  if (report.ended < absl::InfiniteFuture()) SetTime(report.ended, out.mutable_end_time());
  SetTime(report.last_heartbeat, out.mutable_last_heartbeat());
  out.set_evidence(report.evidence);
  Fill(report.control_side, report.comparable_control, out.mutable_control_side());
  Fill(report.canary_side, report.comparable_canary, out.mutable_canary_side());
  for (const CanaryComparison::Row& row : report.rows) Fill(row, out.add_comparisons());
  out.set_allow_uneven(spec.allow_uneven);
  *out.mutable_traffic() = MessageOf(report.traffic);
  SetTime(report.evidence_since, out.mutable_evidence_since());
  for (const CanaryRestart& restart : report.restarts) Fill(restart, out.add_restarts());
  out.set_restart_count(report.restart_count);
  return out;
}

v1::UnitTraffic MessageOf(const CanaryTraffic& traffic) {
  v1::UnitTraffic out;
  out.set_rows(traffic.rows);
  out.set_clients(traffic.clients);
  out.set_units(traffic.units);
  out.set_more(traffic.more);
  out.set_expected_share(traffic.expected);
  out.set_canary_units(traffic.canary_units);
  out.set_largest_share(traffic.largest);
  out.set_largest_unit(traffic.largest_unit);
  return out;
}

v1::LeverEvent MessageOf(const LeverEvent& event) {
  v1::LeverEvent out;
  out.set_epoch(event.epoch);
  SetTime(event.time, out.mutable_time());
  out.set_lever(event.lever);
  out.set_from(event.from);
  out.set_to(event.to);
  out.set_source(ToProto(event.source));
  out.set_actor(event.actor);
  out.set_reason(event.reason);
  out.set_cause(std::string(Name(event.cause)));
  if (event.canary != 0) out.set_canary(CanaryName(event.canary));
  out.set_evidence(event.evidence);
  return out;
}

}  // namespace fulcrum::service

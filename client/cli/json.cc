// Messages to JSON, field by field: the names are a contract of their own, not the wire's.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/json.h"

#include "absl/time/time.h"
#include "client/cli/names.h"

namespace fulcrum::cli {

Json ToJson(const v1::Shard& shard) {
  return {{"name", shard.name()},
          {"n", shard.n()},
          {"k", shard.k()},
          {"format", Word(shard.format())},
          {"family", Word(shard.family())},
          {"phase", Word(shard.phase())},
          {"device", shard.device()},
          {"bytes", shard.bytes()},
          {"hash", shard.hash()},
          {"state", Word(shard.state())},
          {"version", shard.version()},
          {"origin", shard.origin()},
          {"error", shard.error()}};
}

Json ToJson(const v1::Lever& lever) {
  Json json = {{"name", lever.name()},
               {"value", lever.value()},
               {"default", lever.default_value()},
               {"kind", Word(lever.kind())},
               {"source", Word(lever.source())},
               {"latched", lever.latched()},
               {"changes_bits", lever.changes_bits()},
               {"gates", lever.gates()},
               {"description", lever.description()}};
  if (lever.kind() == v1::LEVER_KIND_NUMBER) {
    json["min"] = lever.min();
    json["max"] = lever.max();
  } else {
    json["choices"] = std::vector<std::string>(lever.choices().begin(), lever.choices().end());
  }
  return json;
}

namespace {

Json ToJson(const google::protobuf::RepeatedPtrField<v1::LeverAssignment>& assignments) {
  Json json = Json::object();
  for (const v1::LeverAssignment& a : assignments) json[a.name()] = a.value();
  return json;
}

Json ToJson(const v1::CanarySide& side) {
  return {{"batches", side.batches()},
          {"rows", side.rows()},
          {"comparable", side.comparable()},
          {"clients", side.clients()},
          {"failed_launches", side.failed_launches()},
          {"declined", side.declined()},
          {"shadow",
           {{"passed", side.shadow_passed()},
            {"failed", side.shadow_failed()},
            {"dropped", side.shadow_dropped()}}}};
}

Json ToJson(const v1::CanaryRestart& restart) {
  return {
      {"time", TimeText(restart.time())},           {"shard", restart.shard()},
      {"from_version", restart.from_version()},     {"to_version", restart.to_version()},
      {"from_hash", restart.from_hash()},           {"to_hash", restart.to_hash()},
      {"lever_epoch", restart.lever_epoch()},       {"control_batches", restart.control_batches()},
      {"canary_batches", restart.canary_batches()}, {"shadow_passed", restart.shadow_passed()}};
}

Json ToJson(const v1::CanaryComparison& row) {
  return {{"family", Word(row.family())},
          {"step", Word(row.step())},
          {"rows_first", row.rows_first()},
          {"rows_last", row.rows_last()},
          {"control",
           {{"asked", row.control_asked()},
            {"ran", row.control_ran()},
            {"batches", row.control_batches()},
            {"p50_us", row.control_p50() * 1e6},
            {"p99_us", row.control_p99() * 1e6}}},
          {"canary",
           {{"ran", row.canary_ran()},
            {"batches", row.canary_batches()},
            {"p50_us", row.canary_p50() * 1e6},
            {"p99_us", row.canary_p99() * 1e6}}},
          {"p50_evidence", row.p50_evidence()},
          {"p99_evidence", row.p99_evidence()}};
}

}  // namespace

std::string TimeText(const google::protobuf::Timestamp& stamp) {
  const absl::Time time = absl::FromUnixSeconds(stamp.seconds()) + absl::Nanoseconds(stamp.nanos());
  return absl::FormatTime(absl::RFC3339_full, time, absl::UTCTimeZone());
}

Json ToJson(const v1::UnitTraffic& traffic) {
  return {{"rows", traffic.rows()},
          {"clients", traffic.clients()},
          {"units", traffic.units()},
          {"more", traffic.more()},
          {"expected_share", traffic.expected_share()},
          {"canary_units", traffic.canary_units()},
          {"largest_share", traffic.largest_share()},
          {"largest_unit", traffic.largest_unit()}};
}

Json ToJson(const v1::Canary& canary) {
  Json restarts = Json::array();
  for (const v1::CanaryRestart& restart : canary.restarts()) restarts.push_back(ToJson(restart));
  Json comparisons = Json::array();
  for (const v1::CanaryComparison& row : canary.comparisons()) comparisons.push_back(ToJson(row));
  const v1::CanaryGuards& guards = canary.guards();
  return {{"name", canary.name()},
          {"state", Word(canary.state())},
          {"candidate", ToJson(canary.candidate())},
          {"control", ToJson(canary.control())},
          {"share", canary.share()},
          {"unit", Word(canary.unit())},
          {"allow_uneven", canary.allow_uneven()},
          {"traffic", canary.has_traffic() ? ToJson(canary.traffic()) : Json()},
          {"duration_seconds", canary.duration_seconds()},
          {"on_success", Word(canary.on_success())},
          {"guards",
           {{"min_samples", guards.min_samples()},
            {"min_clients", guards.min_clients()},
            {"kernel_p50", guards.kernel_p50()},
            {"kernel_p99", guards.kernel_p99()},
            {"max_shadow_failures", guards.max_shadow_failures()},
            {"max_failed_launches", guards.max_failed_launches()},
            {"max_declines", guards.max_declines()},
            {"heartbeat_seconds", guards.heartbeat_seconds()}}},
          {"actor", canary.actor()},
          {"reason", canary.reason()},
          {"epoch", canary.epoch()},
          {"control_epoch", canary.control_epoch()},
          {"start_time", TimeText(canary.start_time())},
          {"end_time", canary.has_end_time() ? Json(TimeText(canary.end_time())) : Json()},
          {"evidence", canary.evidence()},
          {"evidence_since",
           canary.has_evidence_since() ? Json(TimeText(canary.evidence_since())) : Json()},
          {"restart_count", canary.restart_count()},
          {"restarts", std::move(restarts)},
          {"control_side", ToJson(canary.control_side())},
          {"canary_side", ToJson(canary.canary_side())},
          {"comparisons", std::move(comparisons)}};
}

Json ToJson(const v1::LeverEvent& event) {
  return {{"epoch", event.epoch()},
          {"time", TimeText(event.time())},
          {"lever", event.lever()},
          {"from", event.from()},
          {"to", event.to()},
          {"source", Word(event.source())},
          {"actor", event.actor()},
          {"reason", event.reason()},
          {"cause", event.cause()},
          {"canary", event.canary()},
          {"evidence", event.evidence()}};
}

Json ToJson(const v1::LadderChoice& choice) {
  Json declined = Json::array();
  for (const v1::Rung& rung : choice.rungs()) {
    if (rung.verdict() == "runs" || rung.verdict() == "below") continue;
    declined.push_back({{"arm", rung.arm()},
                        {"reason", rung.verdict()},
                        {"class", Word(rung.numerics())},
                        {"lever", rung.lever()}});
  }
  Json rungs = Json::array();
  for (const v1::Rung& rung : choice.rungs()) {
    rungs.push_back({{"arm", rung.arm()}, {"verdict", rung.verdict()}});
  }
  return {{"rows", choice.rows()},
          {"arm", choice.arm()},
          {"class", Word(choice.numerics())},
          {"blocks", choice.blocks()},
          {"waves", choice.waves()},
          {"bytes", choice.expected_bytes()},
          {"pieces", std::vector<int>(choice.pieces().begin(), choice.pieces().end())},
          {"declined", std::move(declined)},
          {"rungs", std::move(rungs)}};
}

Json ToJson(const v1::NodeInfo& info) {
  Json devices = Json::array();
  for (const v1::Device& device : info.devices()) {
    devices.push_back({{"id", device.id()},
                       {"description", device.description()},
                       {"memory_bytes", device.memory_bytes()},
                       {"resident_bytes", device.resident_bytes()},
                       {"healthy", device.healthy()},
                       {"capabilities", std::vector<std::string>(device.capabilities().begin(),
                                                                 device.capabilities().end())},
                       {"mma_model", Word(device.mma_model())}});
  }
  const v1::Limits& limits = info.limits();
  return {{"node", info.node()},
          {"version", info.version()},
          {"uptime_seconds", info.uptime_seconds()},
          {"draining", info.draining()},
          {"not_serving", info.not_serving()},
          {"calls_in_flight", info.calls_in_flight()},
          {"default_policy", Word(info.default_policy())},
          {"devices", std::move(devices)},
          {"limits",
           {{"max_decode_rows", limits.max_decode_rows()},
            {"max_prefill_rows", limits.max_prefill_rows()},
            {"max_shards_per_call", limits.max_shards_per_call()},
            {"max_message_bytes", limits.max_message_bytes()},
            {"max_queue_rows", limits.max_queue_rows()},
            {"max_queue_bytes", limits.max_queue_bytes()},
            {"max_stream_calls", limits.max_stream_calls()}}}};
}

Json ToJson(const v1::Provenance& provenance) {
  const v1::StageTimes& stages = provenance.stages();
  return {{"batch_rows", provenance.batch_rows()},
          {"lever_epoch", provenance.lever_epoch()},
          {"close_reason", Word(provenance.close_reason())},
          {"node", provenance.node()},
          {"device", provenance.device()},
          {"stages_us",
           {{"admit", stages.admit() * 1e6},
            {"queue", stages.queue() * 1e6},
            {"gather", stages.gather() * 1e6},
            {"copy_in", stages.copy_in() * 1e6},
            {"kernel", stages.kernel() * 1e6},
            {"copy_out", stages.copy_out() * 1e6}}}};
}

Json ToJson(const v1::ShardOutput& output) {
  return {{"shard", output.shard()},     {"n", output.n()},
          {"arm", output.arm()},         {"class", Word(output.numerics())},
          {"version", output.version()}, {"hash", output.hash()}};
}

void Print(std::ostream& out, const Json& json) {
  // Names in files need not be UTF-8; JSON is.
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace fulcrum::cli

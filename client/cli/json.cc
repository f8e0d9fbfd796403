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

Json ToJson(const v1::LeverEvent& event) {
  const absl::Time time =
      absl::FromUnixSeconds(event.time().seconds()) + absl::Nanoseconds(event.time().nanos());
  return {{"epoch", event.epoch()},
          {"time", absl::FormatTime(absl::RFC3339_full, time, absl::UTCTimeZone())},
          {"lever", event.lever()},
          {"from", event.from()},
          {"to", event.to()},
          {"source", Word(event.source())},
          {"actor", event.actor()},
          {"reason", event.reason()},
          {"cause", event.cause()}};
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

void Print(std::ostream& out, const Json& json) { out << json.dump(2) << "\n"; }

}  // namespace fulcrum::cli

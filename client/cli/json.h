// The wire's messages as JSON with the field names that scripts rely on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>

#include "fulcrum/v1/lever_service.pb.h"
#include "fulcrum/v1/projection_service.pb.h"
#include "fulcrum/v1/shard_service.pb.h"

namespace fulcrum::cli {

using Json = nlohmann::ordered_json;

Json ToJson(const v1::Shard& shard);
Json ToJson(const v1::Lever& lever);
Json ToJson(const v1::LeverEvent& event);
Json ToJson(const v1::Canary& canary);
Json ToJson(const v1::UnitTraffic& traffic);
std::string TimeText(const google::protobuf::Timestamp& stamp);  // RFC 3339, UTC
Json ToJson(const v1::LadderChoice& choice);
Json ToJson(const v1::NodeInfo& info);
Json ToJson(const v1::Provenance& provenance);
Json ToJson(const v1::ShardOutput& output);  // without the data

void Print(std::ostream& out, const Json& json);  // indented, a newline at the end

}  // namespace fulcrum::cli

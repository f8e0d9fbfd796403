// Errors of a remote call: absl::Status with the google.rpc details kept as its payloads, and those
// details decoded. Which errors may be retried is retry.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace google::rpc {
class Status;
}
namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace fulcrum::client {

struct FieldViolation {
  std::string field;
  std::string description;  // what was expected and what came
};

struct PreconditionViolation {
  std::string type;     // SHARD_STATE, LEVER_LATCHED, ...
  std::string subject;  // the shard or lever
  std::string description;
};

// The details a node attaches, decoded. Members stay empty when the error did not carry them.
struct ErrorDetails {
  std::optional<absl::Duration> retry_delay;  // set: waiting this long before a retry helps
  std::vector<FieldViolation> field_violations;
  std::vector<PreconditionViolation> precondition_violations;
  std::string resource_type;
  std::string resource_name;
  std::string resource_description;
  std::string reason;                           // ErrorInfo, UPPER_SNAKE_CASE
  std::map<std::string, std::string> metadata;  // ErrorInfo, e.g. live_epoch, stage

  bool empty() const;
};

// Codes are the same numbers on both sides; a number that Abseil does not know becomes UNKNOWN.
absl::Status FromGrpc(const grpc::Status& status);
// The same of a call that is over, and knows whether the node said it.
absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context);
// Whether the error is the node's own word, not that of a connection that failed.
bool NodeSaid(const absl::Status& status);
// A failed call on a stream, which is always the node's word.
absl::Status FromRpcStatus(const google::rpc::Status& status);

ErrorDetails DetailsOf(const absl::Status& status);

// "CODE: message" and one indented line per detail that the message does not already say.
std::string Describe(const absl::Status& status);

}  // namespace fulcrum::client

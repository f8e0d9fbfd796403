// The one border where an absl::Status becomes a gRPC status. Typed causes (google.rpc messages)
// travel inside the absl::Status as payloads, so code below a handler says what was wrong once and
// every service sends it the same way, in the grpc-status-details-bin trailer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace fulcrum::service {

// `status` with one more detail; a second one of a type replaces it. An OK status stays OK.
absl::Status WithDetail(absl::Status status, const google::protobuf::Message& detail);

// INVALID_ARGUMENT with a BadRequest field violation; the message is "field: description".
absl::Status InvalidField(std::string_view field, std::string_view description);

// RESOURCE_EXHAUSTED and the like with RetryInfo: only where waiting helps.
absl::Status WithRetry(absl::Status status, absl::Duration delay);
// NOT_FOUND and the like with ResourceInfo.
absl::Status WithResource(absl::Status status, std::string_view type, std::string_view name);
// FAILED_PRECONDITION and the like with a PreconditionFailure violation.
absl::Status WithPrecondition(absl::Status status, std::string_view type, std::string_view subject);
// Any status with ErrorInfo: a machine-readable reason and its facts.
absl::Status WithInfo(absl::Status status, std::string_view reason,
                      const std::vector<std::pair<std::string, std::string>>& metadata);

// The wire forms. Messages are cut to a length that fits a trailer; what is not printable ASCII
// is written as \xNN.
google::rpc::Status ToRpcStatus(
    const absl::Status& status);  // for replies that carry a status inside
grpc::Status ToGrpc(const absl::Status& status);

// A name from outside, for an error message: escaped, quoted, cut to a bounded length.
std::string Quoted(std::string_view name);

// Spelling of a gRPC status code as metrics and logs use it: "OK", "INVALID_ARGUMENT", ...
std::string_view CodeName(absl::StatusCode code);
inline constexpr int kStatusCodes = 17;  // 0..16

}  // namespace fulcrum::service

// absl::Status with google.rpc details, and its form on the wire. Details travel as payloads of the
// absl::Status, keyed by their type URL, so that code below needs no gRPC.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace fulcrum::service {

// Adds a google.rpc detail message; no effect on an OK status. A second one of a type replaces it.
absl::Status WithDetail(absl::Status status, const google::protobuf::Message& detail);

// INVALID_ARGUMENT with a BadRequest field violation; the message is "field: description".
absl::Status InvalidField(std::string_view field, std::string_view description);
// FAILED_PRECONDITION and the like with a PreconditionFailure violation.
absl::Status WithPrecondition(absl::Status status, std::string_view type, std::string_view subject);
// NOT_FOUND and the like with ResourceInfo.
absl::Status WithResource(absl::Status status, std::string_view type, std::string_view name);
// RESOURCE_EXHAUSTED and the like with RetryInfo.
absl::Status WithRetry(absl::Status status, absl::Duration delay);

// The codes are the same numbers. Details become the `grpc-status-details-bin` trailer.
grpc::Status ToGrpc(const absl::Status& status);
// The same as a message, for replies that carry a status inside.
google::rpc::Status ToRpcStatus(const absl::Status& status);

}  // namespace fulcrum::service

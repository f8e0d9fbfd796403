// What the methods of LeverService share: checking assignments field by field, and finishing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "fulcrum/v1/lever_service.pb.h"
#include "grpcpp/grpcpp.h"

namespace fulcrum::service {

// What the store would refuse for its text, said per field: INVALID_ARGUMENT.
absl::Status CheckAssignments(
    const google::protobuf::RepeatedPtrField<v1::LeverAssignment>& assignments,
    const std::string& reason);
absl::Status CheckReason(const std::string& reason);

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, const absl::Status& status);

}  // namespace fulcrum::service

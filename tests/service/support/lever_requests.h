// What operators ask of the LeverService, one lever at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace fulcrum::test {

template <class Request>
Request Assigning(const std::string& lever, const std::string& value) {
  Request request;
  auto* const assignment = request.add_assignments();
  assignment->set_name(lever);
  assignment->set_value(value);
  return request;
}
inline v1::SetLeversRequest SetRequest(const std::string& lever, const std::string& value) {
  return Assigning<v1::SetLeversRequest>(lever, value);
}
inline v1::StartCanaryRequest CanaryRequest(const std::string& lever, const std::string& value,
                                            double share) {
  auto request = Assigning<v1::StartCanaryRequest>(lever, value);
  request.set_share(share);
  return request;
}

inline grpc::Status SetLever(v1::LeverService::StubInterface& node, const std::string& lever,
                             const std::string& value) {
  grpc::ClientContext context;
  v1::SetLeversResponse response;
  return node.SetLevers(&context, SetRequest(lever, value), &response);
}

}  // namespace fulcrum::test

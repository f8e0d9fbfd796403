// The detail of one type that an RPC's status carries.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "google/rpc/status.pb.h"

namespace fulcrum::service {

template <class Detail>
Detail DetailOf(const grpc::Status& status) {
  google::rpc::Status wire;
  EXPECT_TRUE(wire.ParseFromString(status.error_details()));
  Detail detail;
  for (const auto& any : wire.details()) {
    if (any.UnpackTo(&detail)) return detail;
  }
  ADD_FAILURE() << "no " << Detail::descriptor()->full_name() << ": " << status.error_message();
  return detail;
}

}  // namespace fulcrum::service

// The command run against a scripted node that lists two shards and answers Project with row sums.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/client/support/fake_node.h"
#include "tests/client/support/run_app.h"

namespace fulcrum::cli {

inline constexpr int64_t kN = 12, kK = 16;

class CommandOnNode : public testing::Test {
 protected:
  CommandOnNode() {
    node_.list_shards = [](const v1::ListShardsRequest&, v1::ListShardsResponse* response) {
      client::FillTwoShards(response, kN, kK, "file.safetensors#w");
      return grpc::Status::OK;
    };
    node_.project = [](grpc::ServerContext*, const v1::ProjectRequest* request,
                       v1::ProjectResponse* response) {
      return client::SumRows(*request, kN, response);
    };
  }
  AppRun Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--target", node_.target()});
    return RunFulcrum(arguments);
  }
  client::FakeNode node_;
};

}  // namespace fulcrum::cli

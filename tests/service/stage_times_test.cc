// The stages of a call account for its time: what an operator sees in fulcrum_stage_seconds leaves
// no part of a call's handling unexplained.
// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "fulcrum/v1/projection_service.grpc.pb.h"
#include "kernels/weights/synthetic.h"
#include "scheduler/shard_store.h"
#include "service/metrics.h"
#include "service/server.h"
#include "tests/service/support/test_server.h"

namespace fulcrum {
namespace {

constexpr char kShard[] = "models/m/shards/wide";
constexpr int kRows = 64;
constexpr int64_t kN = 4096, kK = 2048;
constexpr char kReplies[] = "fulcrum_stage_seconds_%{phase=\"other\",stage=\"reply\",";
constexpr char kHandled[] = "grpc_server_handling_seconds_%{grpc_method=\"Project\",";

// The sum of all samples whose line begins so; '%' stands for `part`.
double Sum(const service::Metrics& metrics, std::string prefix, const std::string& part) {
  prefix.replace(prefix.find('%'), 1, part);
  const std::string text = "\n" + metrics.Text();
  double total = 0;
  for (size_t at = 0; (at = text.find("\n" + prefix, at)) != std::string::npos; ++at) {
    total += std::strtod(text.c_str() + text.find("} ", at) + 2, nullptr);
  }
  return total;
}

// Of several calls the one that was disturbed least: a hole in the accounting is in all of them.
TEST(StageTimes, OfACallAddUpToItsHandlingTime) {
  service::Config config;
  config.listen = "127.0.0.1:0";
  config.metrics_listen = "off";
  config.log_level = "error";
  config.backend = "cpu";
  config.cpu_threads = 1;
  const auto server = service::Server::Start(config, {});
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE((*server)->WaitLoaded().ok());
  const auto source = SyntheticWeight({.name = "wide", .n = kN, .k = kK}, 1);
  ASSERT_TRUE(source.ok()) << source.status();
  LoadRequest load;
  load.name = kShard;
  load.source = *source;
  ASSERT_TRUE((*server)->shards().Load(load).ok());
  const auto stub = v1::ProjectionService::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  v1::ProjectRequest request;
  request.add_shards(kShard);
  request.set_rows(kRows);
  request.set_step(v1::STEP_PREFILL);
  request.set_activations(test::Bf16Rows(kRows, kK, 1));
  const service::Metrics& metrics = (*server)->metrics();
  double best = 0, stages = 0, handled = 0;
  for (int call = 1; call <= 7; ++call) {
    grpc::ClientContext context;
    v1::ProjectResponse response;
    const grpc::Status status = stub->Project(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    for (const char* last : {kReplies, kHandled}) {
      test::Eventually([&] { return Sum(metrics, last, "count") == call; }, last);
    }
    const double stages_now = Sum(metrics, "fulcrum_stage_seconds_%{", "sum");
    const double handled_now = Sum(metrics, kHandled, "sum");
    EXPECT_LE(stages_now - stages, handled_now - handled) << "call " << call;
    best = std::max(best, (stages_now - stages) / (handled_now - handled));
    stages = stages_now;
    handled = handled_now;
  }
  EXPECT_GT(best, 0.98);
}

}  // namespace
}  // namespace fulcrum

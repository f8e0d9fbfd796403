// Health answers whatever the node is busy with: a device that does not come back, a full queue,
// and changes of shards that wait. What it answers over a node's life is server_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include "service/health.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "fulcrum/v1/shard_service.grpc.pb.h"
#include "tests/service/support/project_fixture.h"

namespace fulcrum {
namespace {

using test::Eventually;

class HealthTest : public test::ProjectTest {};

TEST_F(HealthTest, AnswersWhileTheDeviceIsHeldTheQueueIsFullAndUnloadsWait) {
  constexpr int kUnloads = 6;  // more than the service has workers for them
  Start([](service::Config& config) {
    config.limits.max_queue_rows = 64;
    config.limits.max_prefill_rows = 64;
  });
  const auto occupier = Occupy();
  std::vector<std::unique_ptr<Pending>> waiting;
  for (int i = 0; i < 2; ++i) waiting.push_back(Async(Request(32)));
  Eventually([this] { return server_->scheduler().queued_rows() == 64; }, "queued rows");
  EXPECT_EQ(grpc::StatusCode::RESOURCE_EXHAUSTED, Project(Request()).error_code());
  const auto shards = v1::ShardService::NewStub(channel_);
  std::vector<std::thread> unloads;
  for (int i = 0; i < kUnloads; ++i) {
    unloads.emplace_back([&shards] {
      grpc::ClientContext context;
      v1::UnloadShardRequest request;
      request.set_name(kShard);
      request.set_patience_seconds(60);
      v1::UnloadShardResponse response;
      shards->UnloadShard(&context, request, &response);
    });
  }
  Eventually([this] { return Health(kShard) == 2; }, "the unload that waits for its calls");
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(1, Health(""));
    EXPECT_EQ(1, Health("fulcrum.v1.ProjectionService"));
    EXPECT_EQ(2, Health(kShard));
  }
  EXPECT_EQ(1u, backend_->ran().size()) << "the device was not held all the time";
  backend_->Release();
  for (std::thread& unload : unloads) unload.join();
}

}  // namespace
}  // namespace fulcrum

// What of canaries a restart keeps, a damaged journal, and what watchers hear.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/service/support/canary_node.h"

namespace fulcrum {
namespace {

using test::PlantedBackend;
using ::testing::HasSubstr;

using CanaryRestartTest = test::CanaryNode;

TEST_F(CanaryRestartTest, ChangesAndTheControlSurviveARestart) {
  Start();
  ASSERT_TRUE(Set("max_batch_rows", "16").ok());
  MustStart(Candidate(0.3));
  ASSERT_TRUE(Set("coalesce_window_us", "7").ok());
  const uint64_t epoch = List().epoch();
  Stop();  // the canary is not ended: as after a crash

  Start([](service::Config& config) { config.levers["coalesce_window_us"] = "3"; });
  EXPECT_EQ(LeverOf("max_batch_rows").value(), "16");
  EXPECT_EQ(LeverOf("max_batch_rows").source(), v1::LEVER_SOURCE_JOURNAL);
  EXPECT_EQ(LeverOf("coalesce_window_us").value(), "7");
  EXPECT_EQ(LeverOf("m16_tc").value(), "off");
  EXPECT_FALSE(List().has_canary());
  EXPECT_GT(List().epoch(), epoch);
  const auto history = History();
  ASSERT_EQ(history.size(), 5u);
  EXPECT_EQ(history[4].cause(), "revert");
  EXPECT_EQ(history[4].reason(), "the node restarted");
  // A latched lever wins over the journal.
  Stop();
  Start([](service::Config& config) {
    config.levers["max_batch_rows"] = "4";
    config.latched_levers = {"max_batch_rows"};
  });
  EXPECT_EQ(LeverOf("max_batch_rows").value(), "4");
  EXPECT_EQ(LeverOf("max_batch_rows").source(), v1::LEVER_SOURCE_CONFIG);
}

TEST_F(CanaryRestartTest, ADamagedJournalStopsTheStartAndSaysWhere) {
  Start();
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(Set("coalesce_window_us", std::to_string(i)).ok());
  Stop();
  {
    std::fstream file(dir_.At("levers.journal"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(30);
    file.put('~');
  }
  service::Config config;
  config.listen = "127.0.0.1:0";
  config.metrics_listen = "off";
  config.lever_journal = dir_.At("levers.journal");
  service::ServerOptions options;
  options.backends.push_back(std::make_unique<PlantedBackend>(plant_));
  const auto server = service::Server::Start(config, std::move(options));
  EXPECT_EQ(server.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("line 1 (byte 0) is damaged"));
}

TEST_F(CanaryRestartTest, ShardsKeepTheirSideAndWatchersHearOfEveryStep) {
  Start();
  grpc::ClientContext watching;
  const auto watch = levers_->WatchLevers(&watching, {});
  watch->WaitForInitialMetadata();
  const v1::Canary canary = MustStart(Candidate(0.5, v1::CANARY_UNIT_SHARD));
  const auto stub = v1::ProjectionService::NewStub(channel_);
  std::vector<std::set<uint64_t>> epochs(kShards);
  for (int i = 0; i < 40 * kShards; ++i) {
    const auto reply = MustProject(*stub, Request(i % kShards, 1, v1::POLICY_BATCH_INVARIANT));
    epochs[static_cast<size_t>(i % kShards)].insert(reply.provenance().lever_epoch());
    const bool blockfold = reply.outputs(0).numerics() == v1::NUMERICS_CLASS_BLOCKFOLD;
    EXPECT_EQ(blockfold, reply.provenance().lever_epoch() == canary.epoch());
  }
  int on_canary = 0;
  for (const auto& seen : epochs) {
    on_canary += seen.contains(canary.epoch());
    EXPECT_TRUE(seen.contains(canary.epoch()) || seen == std::set{canary.control_epoch()});
  }
  EXPECT_GT(on_canary, 0);
  EXPECT_LT(on_canary, kShards);
  grpc::ClientContext context;
  v1::AbortCanaryRequest abort;
  abort.set_name(canary.name());
  abort.set_reason("seen enough");
  v1::Canary ended;
  ASSERT_TRUE(levers_->AbortCanary(&context, abort, &ended).ok());
  EXPECT_EQ(ended.state(), v1::CANARY_STATE_ABORTED);
  v1::LeverEvent event;
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_EQ(event.cause(), "canary_start");
  EXPECT_EQ(event.canary(), canary.name());
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_EQ(event.cause(), "abort");
  EXPECT_EQ(event.reason(), "seen enough");
  watching.TryCancel();
}

}  // namespace
}  // namespace fulcrum

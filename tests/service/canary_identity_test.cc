// A canary's share over real connections: which of them are one client, what an operator is told,
// and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/service/support/canary_node.h"

namespace fulcrum {
namespace {

using grpc::StatusCode;
using test::DetailOf;
using ::testing::HasSubstr;

constexpr char kHeader[] = "x-fulcrum-client";

class CanaryIdentityTest : public test::CanaryNode {
 protected:
  // Ten connections, as a proxy has them.
  void Connect(const std::string& target) {
    for (int i = 0; i < 10; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stubs_.push_back(v1::ProjectionService::NewStub(
          grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments)));
    }
  }
  uint64_t EpochOf(int connection, const std::vector<std::string>& header = {}) {
    grpc::ClientContext context;
    for (const std::string& value : header) context.AddMetadata(kHeader, value);
    v1::ProjectResponse response;
    const grpc::Status status = stubs_[static_cast<size_t>(connection)]->Project(
        &context, Request(connection % kShards, 2, v1::POLICY_BATCH_INVARIANT), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.provenance().lever_epoch();
  }
  // A hundred calls, each of the next connection.
  void Load(int clients = 0) {
    for (int i = 0; i < 100; ++i) {
      EpochOf(i % 10, clients == 0 ? std::vector<std::string>{}
                                   : std::vector{"c" + std::to_string(i % clients)});
    }
  }
  static v1::StartCanaryRequest FivePercent(v1::CanaryUnit unit) { return Candidate(0.05, unit); }

  std::vector<std::unique_ptr<v1::ProjectionService::Stub>> stubs_;
};

TEST_F(CanaryIdentityTest, TenConnectionsOfOneAddressAreRefusedUnlessThatIsAllowed) {
  Start();
  Connect(server_->address());
  Load();
  const grpc::Status refused = StartCanary(FivePercent(v1::CANARY_UNIT_CLIENT));
  EXPECT_EQ(refused.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("one client (127.0.0.1) sent 100%"));
  const auto failure = DetailOf<google::rpc::PreconditionFailure>(refused);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->violations(0).type(), "CANARY_UNEVEN");
  v1::StartCanaryRequest request = FivePercent(v1::CANARY_UNIT_CLIENT);
  request.set_validate_only(true);
  EXPECT_EQ(StartCanary(request).error_code(), StatusCode::FAILED_PRECONDITION);
  request.set_validate_only(false);
  request.set_allow_uneven(true);
  const v1::Canary canary = MustStart(request);
  EXPECT_TRUE(canary.allow_uneven());
  EXPECT_EQ(canary.traffic().clients(), 1);
  EXPECT_EQ(canary.traffic().rows(), 200);
  EXPECT_EQ(canary.traffic().largest_share(), 1);
  EXPECT_EQ(canary.traffic().largest_unit(), "127.0.0.1");
  EXPECT_EQ(canary.traffic().expected_share(), 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(EpochOf(i % 10), canary.control_epoch());
}

TEST_F(CanaryIdentityTest, ByConnectionOneInTenGetsItAndKeepsIt) {
  Start();
  Connect(server_->address());
  Load();
  const v1::Canary canary = MustStart(FivePercent(v1::CANARY_UNIT_CONNECTION));
  EXPECT_EQ(canary.unit(), v1::CANARY_UNIT_CONNECTION);
  EXPECT_EQ(canary.traffic().units(), 10);
  EXPECT_EQ(canary.traffic().clients(), 1);
  EXPECT_DOUBLE_EQ(canary.traffic().expected_share(), 0.1);
  std::map<int, std::map<uint64_t, int>> epochs;
  for (int i = 0; i < 200; ++i) ++epochs[i % 10][EpochOf(i % 10)];
  int on_canary = 0;
  for (const auto& [connection, counts] : epochs) on_canary += counts.contains(canary.epoch());
  EXPECT_EQ(on_canary, 1);
}

TEST_F(CanaryIdentityTest, ConnectionsOfAUnixSocketAreToldApart) {
  const std::string socket = "unix:" + dir_.At("node.sock");
  Start([&](service::Config& config) { config.listen = socket; });
  Connect(socket);
  Load();
  EXPECT_EQ(StartCanary(FivePercent(v1::CANARY_UNIT_CLIENT)).error_code(),
            StatusCode::FAILED_PRECONDITION);
  const v1::Canary canary = MustStart(FivePercent(v1::CANARY_UNIT_CONNECTION));
  EXPECT_EQ(canary.traffic().units(), 10);
  EXPECT_EQ(canary.traffic().clients(), 1);
}

TEST_F(CanaryIdentityTest, ATrustedPeersHeaderTellsClientsApart) {
  Start([](service::Config& config) {
    config.identity = {.header = kHeader, .trusted_peers = {"127.0.0.0/8"}};
  });
  Connect(server_->address());
  for (int i = 0; i < 4; ++i) Load(20);
  const v1::Canary canary = MustStart(FivePercent(v1::CANARY_UNIT_CLIENT));
  EXPECT_EQ(canary.traffic().clients(), 20);
  EXPECT_NEAR(canary.traffic().expected_share(), 0.05, 1e-9);
  EXPECT_EQ(canary.traffic().canary_units(), 1);
  // The client that has it has it on every connection, the others on none.
  std::map<std::string, std::map<uint64_t, int>> epochs;
  for (int i = 0; i < 400; ++i) {
    const std::string client = "c" + std::to_string(i % 20);
    ++epochs[client][EpochOf(i % 10, {client})];
  }
  int on_canary = 0;
  for (const auto& [client, counts] : epochs) on_canary += counts.contains(canary.epoch());
  EXPECT_EQ(on_canary, 1);
  EXPECT_EQ(Metric("fulcrum_identity_headers_total{result=\"used\"}"), 800);
  EXPECT_EQ(Metric("fulcrum_identity_headers_total{result=\"untrusted\"}"), 0);
  EXPECT_EQ(Metric("fulcrum_clients"), 20);
  EXPECT_EQ(List().traffic().clients(), 20);
}

TEST_F(CanaryIdentityTest, AnybodyElsesHeaderIsIgnoredAndCounted) {
  Start([](service::Config& config) {
    config.identity = {.header = kHeader, .trusted_peers = {"10.0.0.0/8"}};
  });
  Connect(server_->address());
  Load(20);
  EXPECT_EQ(Metric("fulcrum_identity_headers_total{result=\"untrusted\"}"), 100);
  EXPECT_EQ(Metric("fulcrum_clients"), 1);
  EXPECT_EQ(StartCanary(FivePercent(v1::CANARY_UNIT_CLIENT)).error_code(),
            StatusCode::FAILED_PRECONDITION);
}

TEST_F(CanaryIdentityTest, ANameThatComesTwiceNamesNobody) {
  Start([](service::Config& config) {
    config.identity = {.header = kHeader, .trusted_peers = {"127.0.0.1"}};
  });
  Connect(server_->address());
  EpochOf(0, {"mine", "the-proxys"});
  EXPECT_EQ(Metric("fulcrum_identity_headers_total{result=\"invalid\"}"), 1);
  EXPECT_EQ(List().traffic().largest_unit(), "127.0.0.1");
}

TEST_F(CanaryIdentityTest, TheActorOfAChangeIsTheClientAndTheProxy) {
  Start([](service::Config& config) {
    config.identity = {.header = kHeader, .trusted_peers = {"127.0.0.1"}};
  });
  grpc::ClientContext context;
  context.AddMetadata(kHeader, "alice");
  v1::SetLeversResponse response;
  ASSERT_TRUE(
      levers_->SetLevers(&context, test::SetRequest("max_batch_rows", "8"), &response).ok());
  EXPECT_EQ(History().back().actor(), "header:alice via 127.0.0.1");
}

TEST_F(CanaryIdentityTest, ANodeWithoutTrafficSaysSoAndRefusesNothing) {
  Start();
  const v1::Canary canary = MustStart(FivePercent(v1::CANARY_UNIT_CLIENT));
  EXPECT_EQ(canary.traffic().rows(), 0);
  EXPECT_EQ(canary.traffic().clients(), 0);
  Connect(server_->address());
  Load();
  EXPECT_EQ(List().canary().traffic().rows(), 200);  // now it has some
  EXPECT_EQ(List().canary().traffic().largest_share(), 1);
}

TEST_F(CanaryIdentityTest, AReplacedWeightIsOnRecordWithBothVersions) {
  Start();
  Connect(server_->address());
  v1::StartCanaryRequest request = Candidate(0.5, v1::CANARY_UNIT_CONNECTION);
  request.mutable_guards()->set_kernel_p50(-1);
  request.mutable_guards()->set_kernel_p99(-1);
  const v1::Canary canary = MustStart(request);
  // On a node without traffic all may be on one side: both are to have evidence.
  Load();
  LoadRequest replacement;
  replacement.name = ShardName(0);
  replacement.source =
      std::make_shared<test::MemoryWeight>(test::RandomFp8(kN, kK, test::WeightKind::kGaussian, 9));
  const auto replaced = server_->shards().Replace(replacement);
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  const v1::Canary after = List().canary();
  ASSERT_EQ(after.restarts_size(), 1);
  EXPECT_EQ(after.restart_count(), 1);
  EXPECT_EQ(after.restarts(0).shard(), ShardName(0));
  EXPECT_EQ(after.restarts(0).from_version(), 1);
  EXPECT_EQ(after.restarts(0).to_version(), 2);
  EXPECT_EQ(after.restarts(0).to_hash(), (*replaced)->hash);
  EXPECT_NE(after.restarts(0).from_hash(), (*replaced)->hash);
  EXPECT_EQ(after.canary_side().comparable(), 0);
  grpc::ClientContext context;
  v1::AbortCanaryRequest abort;
  abort.set_name(canary.name());
  v1::Canary over;
  ASSERT_TRUE(levers_->AbortCanary(&context, abort, &over).ok());
  EXPECT_THAT(History().back().evidence(), HasSubstr("version 1 (hash"));
  EXPECT_THAT(History().back().evidence(), HasSubstr("was replaced by version 2 (hash"));
}

}  // namespace
}  // namespace fulcrum

// ShardService over an in-process channel, with a real store, loader, ladder and CPU backend.
// SPDX-License-Identifier: Apache-2.0
#include "service/shard_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/service/support/shard_service_rig.h"

namespace fulcrum::service {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

TEST_F(ShardServiceTest, AShardsWholeLife) {
  dir_.Write("a.safetensors", File(1));
  dir_.Write("b.safetensors", File(2));
  auto request = Request("a.safetensors");
  request.set_family(v1::FAMILY_FFN_DOWN);
  v1::Shard first;
  ASSERT_TRUE(Load(request, &first).ok());
  EXPECT_EQ(first.name(), kName);
  EXPECT_EQ(first.n(), 8);
  EXPECT_EQ(first.k(), 64);
  EXPECT_EQ(first.format(), v1::WEIGHT_FORMAT_BF16);
  EXPECT_EQ(first.family(), v1::FAMILY_FFN_DOWN);
  EXPECT_EQ(first.phase(), v1::PHASE_FFN);
  EXPECT_EQ(first.device(), backend_->device().id);
  EXPECT_EQ(first.hash().size(), 64u);
  EXPECT_EQ(first.version(), 1u);
  EXPECT_EQ(first.state(), v1::SHARD_STATE_SERVING);

  const grpc::Status twice = Load(request);
  EXPECT_EQ(twice.error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(twice).resource_name(), kName);

  v1::Shard second;
  ASSERT_TRUE(Replace(Request("b.safetensors"), &second).ok());
  EXPECT_EQ(second.version(), 2u);
  EXPECT_NE(second.hash(), first.hash());
  EXPECT_EQ(second.family(), v1::FAMILY_FFN_DOWN);  // levers go by it: new weights keep it
  auto moved = Request("b.safetensors");
  moved.set_family(v1::FAMILY_OTHER);
  ASSERT_TRUE(Replace(moved, &second).ok());
  EXPECT_EQ(second.family(), v1::FAMILY_OTHER);

  ASSERT_TRUE(Load(Request("a.safetensors", "models/n/shards/t")).ok());
  EXPECT_EQ(List().size(), 2u);
  ASSERT_EQ(List("models/m").size(), 1u);
  EXPECT_EQ(List("models/m")[0].name(), kName);
  EXPECT_TRUE(List("models/absent").empty());

  EXPECT_TRUE(Unload(kName).ok());
  EXPECT_EQ(List().size(), 1u);
  const grpc::Status gone = Unload(kName);
  EXPECT_EQ(gone.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(gone).resource_name(), kName);
  EXPECT_EQ(Replace(Request("a.safetensors")).error_code(), StatusCode::NOT_FOUND);
  ASSERT_TRUE(Load(request, &first).ok());
  EXPECT_EQ(first.version(), 4u);  // versions of a name never repeat
}

TEST_F(ShardServiceTest, AFailedReplacementLeavesTheOldVersionServing) {
  const std::string whole = File(1);
  dir_.Write("a.safetensors", whole);
  dir_.Write("truncated.safetensors", whole.substr(0, whole.size() - 2));
  v1::Shard loaded;
  ASSERT_TRUE(Load(Request("a.safetensors"), &loaded).ok());

  const grpc::Status truncated = Replace(Request("truncated.safetensors"));
  EXPECT_EQ(truncated.error_code(), StatusCode::DATA_LOSS);
  EXPECT_THAT(truncated.error_message(), HasSubstr("outside the file"));
  EXPECT_EQ(Replace(Request("absent.safetensors")).error_code(), StatusCode::NOT_FOUND);
  auto wrong_hash = Request("a.safetensors");
  wrong_hash.set_expect_hash(std::string(64, 'a'));
  const grpc::Status hash = Replace(wrong_hash);
  EXPECT_EQ(hash.error_code(), StatusCode::DATA_LOSS);
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(hash).resource_name(), kName);
  EXPECT_THAT(hash.error_message(), HasSubstr(loaded.hash()));

  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List()[0].version(), 1u);
  EXPECT_EQ(List()[0].state(), v1::SHARD_STATE_SERVING);
  EXPECT_EQ(List()[0].hash(), loaded.hash());
  EXPECT_FALSE(List()[0].error().empty());  // the last attempt's
  EXPECT_TRUE(store_->Find(kName).ok());
}

TEST_F(ShardServiceTest, OverwritingTheFileOfALoadedShardChangesNothingUntilItIsLoadedAgain) {
  dir_.Write("a.safetensors", File(1));
  v1::Shard loaded;
  ASSERT_TRUE(Load(Request("a.safetensors"), &loaded).ok());
  const auto serving = store_->Find(kName);
  ASSERT_TRUE(serving.ok());

  dir_.Write("a.safetensors", File(2));
  EXPECT_EQ(*(*serving)->weight->Checksum(), (*serving)->checksum);
  auto pinned = Request("a.safetensors");
  pinned.set_expect_hash(loaded.hash());
  EXPECT_EQ(Replace(pinned).error_code(), StatusCode::DATA_LOSS);
  EXPECT_EQ(List()[0].version(), 1u);
  v1::Shard again;
  ASSERT_TRUE(Replace(Request("a.safetensors"), &again).ok());
  EXPECT_NE(again.hash(), loaded.hash());
}

TEST_F(ShardServiceTest, RequestsAreCheckedFieldByField) {
  dir_.Write("a.safetensors", File(1));
  const auto field_of = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
    const auto bad = DetailOf<google::rpc::BadRequest>(status);
    return bad.field_violations_size() == 1 ? bad.field_violations(0).field() : std::string();
  };
  EXPECT_EQ(field_of(Load(Request("a.safetensors", "s"))), "name");
  EXPECT_EQ(field_of(Load(Request("a.safetensors", ""))), "name");
  EXPECT_EQ(field_of(Load(Request("../a.safetensors"))), "file");
  EXPECT_EQ(field_of(Load(v1::LoadShardRequest())), "name");
  auto request = Request("a.safetensors");
  request.set_family(static_cast<v1::Family>(99));
  EXPECT_EQ(field_of(Load(request)), "family");
  request = Request("a.safetensors");
  request.set_expect_hash("nonsense");
  EXPECT_EQ(field_of(Load(request)), "expect_hash");
  request = Request("a.safetensors");
  request.mutable_file()->set_row_end(9);
  EXPECT_EQ(field_of(Load(request)), "file");
  EXPECT_EQ(field_of(Unload("s")), "name");
  for (double patience : {-1.0, 1e9, std::nan(""), HUGE_VAL}) {
    EXPECT_EQ(field_of(Unload(kName, patience)), "patience_seconds");
  }
  EXPECT_EQ(Load(Request("/etc/passwd")).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(List().empty());
  grpc::ClientContext context;
  v1::ListShardsRequest list;
  list.set_parent("m");
  v1::ListShardsResponse response;
  EXPECT_EQ(field_of(stub_->ListShards(&context, list, &response)), "parent");
}

TEST_F(ShardServiceTest, UnloadWaitsForCallsAsLongAsItIsTold) {
  dir_.Write("a.safetensors", File(1));
  ASSERT_TRUE(Load(Request("a.safetensors")).ok());
  auto held = store_->Find(kName);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(Unload(kName, 0.001).error_code(), StatusCode::DEADLINE_EXCEEDED);
  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List()[0].state(), v1::SHARD_STATE_DRAINING);
  const grpc::Status refused = Replace(Request("a.safetensors"));
  EXPECT_EQ(refused.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf<google::rpc::PreconditionFailure>(refused).violations(0).type(),
            "SHARD_STATE");
  held = absl::CancelledError();  // the call ends
  EXPECT_TRUE(List().empty());
}

TEST_F(ShardServiceTest, AClientThatGoesAwayLeavesAWholeShard) {
  dir_.Write("big.safetensors", File(1, 20000));
  for (int i = 0; i < 8; ++i) {
    const std::string name = std::string(kName) + std::to_string(i);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    v1::Shard shard;
    grpc::Status status;
    auto call = stub_->AsyncLoadShard(&context, Request("big.safetensors", name), &queue);
    call->Finish(&shard, &status, nullptr);
    context.TryCancel();
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    queue.Shutdown();
  }
  server_->Shutdown();
  service_.reset();  // waits for what was begun
  for (const ShardInfo& info : store_->List()) {
    EXPECT_EQ(info.state, ShardState::kServing) << info.name << ": " << info.error;
    EXPECT_TRUE(info.error.ok());
  }
}

TEST_F(ShardServiceTest, ManyLoadsOfOneNameMakeOneShard) {
  dir_.Write("a.safetensors", File(1, 2000));
  std::vector<std::thread> clients;
  std::atomic<int> loaded = 0, refused = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      const grpc::Status status = Load(Request("a.safetensors"));
      loaded += status.ok();
      refused += status.error_code() == StatusCode::ALREADY_EXISTS;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(loaded, 1);
  EXPECT_EQ(refused, 7);
  EXPECT_EQ(List()[0].version(), 1u);
}

TEST_F(ShardServiceTest, ExplainAgreesWithTheLadderAtEveryRowCount) {
  dir_.Write("a.safetensors", File(1));
  auto load = Request("a.safetensors");
  load.set_family(v1::FAMILY_LM_HEAD);
  ASSERT_TRUE(Load(load).ok());
  v1::ExplainLadderRequest request;
  request.set_shard(kName);
  v1::ExplainLadderResponse response;
  ASSERT_TRUE(Explain(request, &response).ok());
  EXPECT_EQ(response.lever_epoch(), 1u);
  ASSERT_EQ(response.choices_size(), kMaxDecodeRows);
  for (int i = 0; i < response.choices_size(); ++i) {
    const v1::LadderChoice& choice = response.choices(i);
    EXPECT_EQ(choice.rows(), i + 1);
    EXPECT_EQ(choice.numerics(), v1::NUMERICS_CLASS_EXACT);  // the node's default policy
    EXPECT_FALSE(choice.arm().empty());
    EXPECT_GT(choice.expected_bytes(), 0);
    int running = 0;
    for (const v1::Rung& rung : choice.rungs()) running += rung.verdict() == "runs";
    EXPECT_EQ(running, 1);
  }
  const std::string exact_arm = response.choices(0).arm();

  ASSERT_TRUE(levers_->Set({{"m16_tc", "lm_head"}}, {}).ok());
  request.set_policy(v1::POLICY_FASTEST);
  request.add_rows(32);
  response.Clear();
  ASSERT_TRUE(Explain(request, &response).ok());
  EXPECT_EQ(response.lever_epoch(), 2u);
  ASSERT_EQ(response.choices_size(), 1);
  EXPECT_EQ(response.choices(0).numerics(), v1::NUMERICS_CLASS_BLOCKFOLD);
  EXPECT_NE(response.choices(0).arm(), exact_arm);
}

TEST_F(ShardServiceTest, ExplainRefusesWhatItCannotAnswer) {
  dir_.Write("a.safetensors", File(1));
  ASSERT_TRUE(Load(Request("a.safetensors")).ok());
  v1::ExplainLadderResponse response;
  v1::ExplainLadderRequest request;
  request.set_shard("models/m/shards/absent");
  EXPECT_EQ(Explain(request, &response).error_code(), StatusCode::NOT_FOUND);
  request.set_shard(kName);
  for (int rows : {0, -1, 33}) {
    request.clear_rows();
    request.add_rows(rows);
    EXPECT_EQ(Explain(request, &response).error_code(), StatusCode::INVALID_ARGUMENT) << rows;
  }
  request.set_step(v1::STEP_PREFILL);
  request.set_rows(0, 2048);
  EXPECT_TRUE(Explain(request, &response).ok());
  request.set_rows(0, 2049);
  EXPECT_EQ(Explain(request, &response).error_code(), StatusCode::INVALID_ARGUMENT);
  request.clear_rows();
  for (int i = 0; i < 1000; ++i) request.add_rows(1);
  EXPECT_EQ(Explain(request, &response).error_code(), StatusCode::INVALID_ARGUMENT);
  request.clear_rows();
  request.set_policy(static_cast<v1::Policy>(9));
  EXPECT_EQ(Explain(request, &response).error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(ShardServiceTest, NodeInfoSaysWhatTheNodeHolds) {
  dir_.Write("a.safetensors", File(1));
  v1::Shard shard;
  ASSERT_TRUE(Load(Request("a.safetensors"), &shard).ok());
  draining_ = true;
  grpc::ClientContext context;
  v1::NodeInfo info;
  ASSERT_TRUE(stub_->GetNodeInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.node(), "node-1");
  EXPECT_EQ(info.version(), "9.9");
  EXPECT_EQ(info.default_policy(), v1::POLICY_EXACT);
  EXPECT_TRUE(info.draining());
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).id(), backend_->device().id);
  EXPECT_TRUE(info.devices(0).healthy());
  EXPECT_EQ(info.devices(0).resident_bytes(), shard.bytes());
  EXPECT_EQ(info.limits().max_decode_rows(), kMaxDecodeRows);
  EXPECT_EQ(info.limits().max_prefill_rows(), 2048);
}

}  // namespace
}  // namespace fulcrum::service

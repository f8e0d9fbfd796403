// ShardService over an in-process channel, with the CPU's backend and a folder of weight files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "kernels/backend_factory.h"
#include "scheduler/clock.h"
#include "scheduler/lever_store.h"
#include "service/shard_service.h"
#include "tests/service/support/status_detail.h"
#include "tests/support/weight_files.h"

namespace fulcrum::service {

inline constexpr char kName[] = "models/m/shards/s";

inline std::string File(uint16_t tag, int64_t n = 8) {
  std::vector<uint16_t> values(static_cast<size_t>(n) * 64, static_cast<uint16_t>(0x3f00 + tag));
  return test::SafetensorsBuilder()
      .Add("w.weight", "BF16", {n, 64}, test::ArrayBytes(values))
      .Build();
}

inline std::unique_ptr<Backend> Cpu(int64_t memory_bytes) {
  auto backends = MakeBackends("cpu", {.cpu_threads = 1, .memory_budget_bytes = memory_bytes});
  EXPECT_TRUE(backends.ok()) << backends.status();
  return backends.ok() ? std::move(backends->front()) : nullptr;
}

class ShardServiceTest : public ::testing::Test {
 protected:
  ShardServiceTest() {
    backend_ = Cpu(0);
    store_ = std::make_unique<ShardStore>(std::vector<Backend*>{backend_.get()}, nullptr);
    loader_ = std::make_unique<ShardLoader>(*store_, std::vector<std::string>{dir_.path()});
    levers_ = std::make_unique<LeverStore>(clock_);
    service_ = std::make_unique<ShardServiceImpl>(
        *store_, *loader_, *levers_, std::vector<Backend*>{backend_.get()}, authorizer_,
        NodeFacts{.node = "node-1",
                  .version = "9.9",
                  .started = absl::Now(),
                  .default_policy = Policy::kExact,
                  .limits = {},
                  .draining = [this] { return draining_.load(); }});
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::ShardService::NewStub(server_->InProcessChannel({}));
  }
  ~ShardServiceTest() override { server_->Shutdown(); }

  v1::LoadShardRequest Request(const std::string& path, const std::string& name = kName) const {
    v1::LoadShardRequest request;
    request.set_name(name);
    request.mutable_file()->set_path(path);
    request.mutable_file()->set_tensor("w.weight");
    return request;
  }
  grpc::Status Load(const v1::LoadShardRequest& request, v1::Shard* shard = nullptr) {
    grpc::ClientContext context;
    v1::Shard ignored;
    return stub_->LoadShard(&context, request, shard ? shard : &ignored);
  }
  grpc::Status Replace(const v1::LoadShardRequest& load, v1::Shard* shard = nullptr) {
    grpc::ClientContext context;
    v1::ReplaceShardRequest request;
    *request.mutable_load() = load;
    v1::Shard ignored;
    return stub_->ReplaceShard(&context, request, shard ? shard : &ignored);
  }
  grpc::Status Unload(const std::string& name, double patience = 0) {
    grpc::ClientContext context;
    v1::UnloadShardRequest request;
    request.set_name(name);
    request.set_patience_seconds(patience);
    v1::UnloadShardResponse response;
    return stub_->UnloadShard(&context, request, &response);
  }
  std::vector<v1::Shard> List(const std::string& parent = "") {
    grpc::ClientContext context;
    v1::ListShardsRequest request;
    request.set_parent(parent);
    v1::ListShardsResponse response;
    const grpc::Status status = stub_->ListShards(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {response.shards().begin(), response.shards().end()};
  }
  grpc::Status Explain(const v1::ExplainLadderRequest& request, v1::ExplainLadderResponse* out) {
    grpc::ClientContext context;
    return stub_->ExplainLadder(&context, request, out);
  }

  test::TempDir dir_;
  const Clock clock_{};
  const Authorizer authorizer_{TlsFiles{}};
  std::atomic<bool> draining_ = false;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<ShardLoader> loader_;
  std::unique_ptr<LeverStore> levers_;
  std::unique_ptr<ShardServiceImpl> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ShardService::Stub> stub_;
};

}  // namespace fulcrum::service

// A whole node over gRPC on loopback with the CPU's arms, faults planted in them
// (tests/support/planted_backend.h), eight shards, a journal on disk, and what operators and
// callers do to canaries there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "tests/service/support/lever_requests.h"
#include "tests/service/support/test_server.h"
#include "tests/support/planted_backend.h"
#include "tests/support/random_weights.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {

class CanaryNode : public ::testing::Test {
 protected:
  static constexpr int64_t kN = 192, kK = 256;
  static constexpr int kShards = 8;

  void Start(std::function<void(service::Config&)> change = nullptr) {
    service::Config config;
    config.listen = "127.0.0.1:0";
    config.metrics_listen = "off";
    config.log_level = "error";
    config.levers["audit_rate"] = "0";
    config.lever_journal = dir_.At("levers.journal");
    config.bundle_folder = dir_.path();
    if (change) change(config);
    service::ServerOptions options;
    options.backends.push_back(std::make_unique<PlantedBackend>(plant_));
    auto server = service::Server::Start(config, std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_TRUE(server_->WaitLoaded().ok());
    for (int i = 0; i < kShards; ++i) {
      LoadRequest request;
      request.name = ShardName(i);
      request.family = Family::kFfnDown;
      request.source = std::make_shared<MemoryWeight>(RandomFp8(kN, kK, WeightKind::kGaussian, 3));
      ASSERT_TRUE(server_->shards().Load(request).ok());
    }
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    levers_ = v1::LeverService::NewStub(channel_);
  }
  void Stop() {
    levers_.reset();
    channel_.reset();
    server_.reset();
  }

  static std::string ShardName(int i) { return "models/m/shards/" + std::to_string(i); }
  static v1::ProjectRequest Request(int shard, int rows, v1::Policy policy) {
    v1::ProjectRequest request;
    request.add_shards(ShardName(shard));
    request.set_rows(rows);
    request.set_policy(policy);
    const auto x = RandomActivations(rows, kK, ActivationKind::kGaussian, 4);
    request.set_activations(reinterpret_cast<const char*>(x.data()), x.size() * 2);
    return request;
  }
  v1::ProjectResponse MustProject(v1::ProjectionService::Stub& stub,
                                  const v1::ProjectRequest& request) {
    grpc::ClientContext context;
    v1::ProjectResponse response;
    const grpc::Status status = stub.Project(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static v1::StartCanaryRequest Candidate(double share,
                                          v1::CanaryUnit unit = v1::CANARY_UNIT_BATCH) {
    v1::StartCanaryRequest request = CanaryRequest("m16_tc", "all:one_pass", share);
    request.set_unit(unit);
    request.set_reason("try it");
    request.mutable_guards()->set_min_samples(20);
    return request;
  }
  grpc::Status StartCanary(const v1::StartCanaryRequest& request, v1::Canary* canary = nullptr) {
    grpc::ClientContext context;
    v1::Canary ignored;
    return levers_->StartCanary(&context, request, canary == nullptr ? &ignored : canary);
  }
  v1::Canary MustStart(const v1::StartCanaryRequest& request) {
    v1::Canary canary;
    const grpc::Status status = StartCanary(request, &canary);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return canary;
  }
  grpc::Status Set(const std::string& lever, const std::string& value) {
    return SetLever(*levers_, lever, value);
  }
  v1::ListLeversResponse List() {
    grpc::ClientContext context;
    v1::ListLeversResponse response;
    EXPECT_TRUE(levers_->ListLevers(&context, {}, &response).ok());
    return response;
  }
  v1::Lever LeverOf(const std::string& name) {
    const v1::ListLeversResponse list = List();
    for (const v1::Lever& lever : list.levers()) {
      if (lever.name() == name) return lever;
    }
    return {};
  }
  std::vector<v1::LeverEvent> History() {
    grpc::ClientContext context;
    v1::ListLeverHistoryResponse response;
    EXPECT_TRUE(levers_->ListLeverHistory(&context, {}, &response).ok());
    return {response.events().begin(), response.events().end()};
  }
  double Metric(const std::string& series) const {
    const std::string text = "\n" + server_->metrics().Text();
    const size_t at = text.find("\n" + series + " ");
    if (at == std::string::npos) return -1;
    return std::strtod(text.c_str() + at + series.size() + 2, nullptr);
  }
  // Callers under load until the canary is over; EXACT calls among them, each compared with its
  // bytes from before. Returns the canary.
  v1::Canary LoadUntilOver(const std::vector<std::string>& exact) {
    std::atomic<bool> stop{false};
    std::atomic<int> differ{0};
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; ++c) {
      callers.emplace_back([&, c] {
        const auto stub = v1::ProjectionService::NewStub(
            grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
        for (int i = c; !stop; ++i) {
          if (i % 5 == 0) {
            const auto reply = MustProject(*stub, Request(i % kShards, 6, v1::POLICY_EXACT));
            differ += reply.outputs(0).data() != exact[static_cast<size_t>(i % kShards)];
          } else {
            MustProject(*stub, Request(i % kShards, 6, v1::POLICY_FASTEST));
          }
        }
      });
    }
    Eventually([this] { return List().canary().has_end_time(); }, "the canary goes on");
    stop = true;
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(differ, 0) << "bytes of EXACT calls changed";
    return List().canary();
  }
  std::vector<std::string> ExactBytes() {
    const auto stub = v1::ProjectionService::NewStub(channel_);
    std::vector<std::string> bytes;
    for (int i = 0; i < kShards; ++i) {
      bytes.push_back(MustProject(*stub, Request(i, 6, v1::POLICY_EXACT)).outputs(0).data());
    }
    return bytes;
  }

  const TempDir dir_;
  const std::shared_ptr<PlantedArm> plant_ = std::make_shared<PlantedArm>();
  std::unique_ptr<service::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::LeverService::Stub> levers_;
};

}  // namespace fulcrum::test

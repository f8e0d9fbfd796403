// Canaries as an operator and callers see them: a whole node over gRPC on loopback, the CPU's arms
// with planted faults (tests/support/planted_backend.h), concurrent callers, a journal on disk.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "kernels/numerics/bundle.h"
#include "tests/service/support/lever_requests.h"
#include "tests/service/support/test_server.h"
#include "tests/support/planted_backend.h"
#include "tests/support/random_weights.h"
#include "tests/support/weight_files.h"

namespace fulcrum {
namespace {

using grpc::StatusCode;
using test::DetailOf;
using test::Eventually;
using test::PlantedArm;
using test::PlantedBackend;
using ::testing::HasSubstr;

constexpr int64_t kN = 192, kK = 256;
constexpr int kShards = 8;

class CanaryServiceTest : public ::testing::Test {
 protected:
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
      request.source = std::make_shared<test::MemoryWeight>(
          test::RandomFp8(kN, kK, test::WeightKind::kGaussian, 3));
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
    const auto x = test::RandomActivations(rows, kK, test::ActivationKind::kGaussian, 4);
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
    v1::StartCanaryRequest request = test::CanaryRequest("m16_tc", "all:one_pass", share);
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
    return test::SetLever(*levers_, lever, value);
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

  const test::TempDir dir_;
  const std::shared_ptr<PlantedArm> plant_ = std::make_shared<PlantedArm>();
  std::unique_ptr<service::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::LeverService::Stub> levers_;
};

TEST_F(CanaryServiceTest, RefusalsNameWhatIsWrong) {
  Start();
  const auto field = [this](const v1::StartCanaryRequest& request) {
    const grpc::Status status = StartCanary(request);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
    const auto bad = DetailOf<google::rpc::BadRequest>(status);
    return bad && bad->field_violations_size() == 1 ? bad->field_violations(0).field() : "";
  };
  EXPECT_EQ(field({}), "assignments");
  EXPECT_EQ(field(Candidate(0)), "share");
  EXPECT_EQ(field(Candidate(1.5)), "share");
  v1::StartCanaryRequest request = Candidate(0.1);
  request.mutable_assignments(0)->set_value("attn_o:m99");
  EXPECT_EQ(field(request), "assignments[0].value");
  request = Candidate(0.1);
  request.set_unit(static_cast<v1::CanaryUnit>(99));
  EXPECT_EQ(field(request), "unit");
  request = Candidate(0.1);
  request.set_duration_seconds(-1);
  EXPECT_EQ(field(request), "duration_seconds");
  request = Candidate(0.1);
  request.mutable_guards()->set_kernel_p99(0.5);
  EXPECT_EQ(field(request), "guards.kernel_p99");
  request = Candidate(0.1);
  request.mutable_assignments(0)->set_value("off");
  EXPECT_EQ(StartCanary(request).error_code(), StatusCode::INVALID_ARGUMENT);
  request = Candidate(0.1);
  request.set_based_on_epoch(77);
  EXPECT_EQ(StartCanary(request).error_code(), StatusCode::ABORTED);
  request = Candidate(0.1);
  request.set_validate_only(true);
  v1::Canary would;
  ASSERT_TRUE(StartCanary(request, &would).ok());
  EXPECT_EQ(would.guards().kernel_p50(), 1.02);
  EXPECT_EQ(would.control(0).value(), "off");
  EXPECT_FALSE(List().has_canary());

  const v1::Canary canary = MustStart(Candidate(0.1));
  const grpc::Status second = StartCanary(Candidate(0.1));
  EXPECT_EQ(second.error_code(), StatusCode::FAILED_PRECONDITION);
  const grpc::Status set = Set("m16_tc", "attn_o");
  EXPECT_EQ(set.error_code(), StatusCode::FAILED_PRECONDITION);
  const auto failure = DetailOf<google::rpc::PreconditionFailure>(set);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->violations(0).type(), "CANARY_RUNNING");
  EXPECT_EQ(failure->violations(0).subject(), canary.name());
  EXPECT_TRUE(Set("max_batch_rows", "16").ok());

  const auto abort = [this](const std::string& name) {
    grpc::ClientContext context;
    v1::AbortCanaryRequest message;
    message.set_name(name);
    v1::Canary response;
    return levers_->AbortCanary(&context, message, &response);
  };
  EXPECT_EQ(abort("7").error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(abort("canaries/999").error_code(), StatusCode::NOT_FOUND);
  grpc::ClientContext context;
  v1::PromoteCanaryRequest promote;
  promote.set_name(canary.name());
  v1::Canary response;
  const grpc::Status early = levers_->PromoteCanary(&context, promote, &response);
  EXPECT_EQ(early.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(early.error_message(), HasSubstr("0 canary and 0 control batches"));
  EXPECT_TRUE(abort(canary.name()).ok());
  EXPECT_EQ(abort(canary.name()).error_code(), StatusCode::FAILED_PRECONDITION);
}

TEST_F(CanaryServiceTest, AWrongArmOnFivePercentIsRevertedBeforeTwoHundredRows) {
  Start();
  const auto exact = ExactBytes();
  plant_->wrong = true;
  const v1::Canary started = MustStart(Candidate(0.05));
  EXPECT_EQ(started.state(), v1::CANARY_STATE_RUNNING);
  const v1::Canary canary = LoadUntilOver(exact);
  EXPECT_EQ(canary.state(), v1::CANARY_STATE_REVERTED);
  EXPECT_THAT(canary.evidence(), HasSubstr("shadow checks failed"));
  EXPECT_GT(plant_->wrong_rows, 0);
  EXPECT_LT(plant_->wrong_rows, 200);
  EXPECT_EQ(LeverOf("m16_tc").value(), "off");
  // Metrics hear of it after the guards have acted.
  Eventually([this] { return Metric("fulcrum_canary_state{state=\"reverted\"}") == 1; }, "state");
  EXPECT_EQ(Metric("fulcrum_canary_state{state=\"running\"}"), 0);
  EXPECT_EQ(Metric("fulcrum_lever_changes_total{cause=\"revert\",lever=\"m16_tc\"}"), 1);
  Eventually(
      [this] {
        return Metric("fulcrum_shadow_checks_total{result=\"fail\",tier=\"cpu_w8a16_blockfold\"}") >
               0;
      },
      "shadow_checks_total");
  const auto history = History();
  ASSERT_EQ(history.size(), 3u);
  EXPECT_EQ(history[0].cause(), "start");  // audit_rate, by the configuration
  EXPECT_EQ(history[1].cause(), "canary_start");
  EXPECT_EQ(history[2].cause(), "revert");
  EXPECT_EQ(history[2].canary(), started.name());
  EXPECT_EQ(history[2].evidence(), canary.evidence());
  // What was wrong was written down.
  std::string found;
  Eventually(
      [&] {
        for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
          if (file.path().extension() == ".bundle") found = file.path();
        }
        return !found.empty();
      },
      "no bundle");
  const auto bundle = numerics::ReadBundle(found);
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_EQ(bundle->arm, "cpu_w8a16_blockfold");
  EXPECT_EQ(bundle->lever_epoch, started.epoch());
}

TEST_F(CanaryServiceTest, AFivePercentSlowerArmIsReverted) {
  Start([](service::Config& config) { config.levers["shadow_rate"] = "0"; });
  const auto exact = ExactBytes();
  plant_->slower = 1.05;
  MustStart(Candidate(0.2));
  const v1::Canary canary = LoadUntilOver(exact);
  EXPECT_EQ(canary.state(), v1::CANARY_STATE_REVERTED);
  EXPECT_THAT(canary.evidence(), HasSubstr("kernel p50 of ffn_down"));
  ASSERT_GE(canary.comparisons_size(), 1);
  EXPECT_EQ(canary.comparisons(0).control_ran(), "cpu_w8a16_exact");
  EXPECT_EQ(canary.comparisons(0).canary_ran(), "cpu_w8a16_blockfold");
  EXPECT_GT(canary.canary_side().comparable(), 0);
}

TEST_F(CanaryServiceTest, AnAuditMismatchRevertsAndStopsTheDeviceWhereConfigured) {
  Start([](service::Config& config) {
    config.levers["audit_rate"] = "1";
    config.audit.stop_device_on_mismatch = true;
    config.audit.outputs_per_batch = 256;
  });
  plant_->one_bit = true;
  MustStart(Candidate(0.5));
  // No replies are checked: once the device is out of service there may be none.
  const auto stub = v1::ProjectionService::NewStub(channel_);
  for (int i = 0; !List().canary().has_end_time(); ++i) {
    ASSERT_LT(i, 100000);
    grpc::ClientContext context;
    v1::ProjectResponse response;
    (void)stub->Project(&context, Request(i % kShards, 6, v1::POLICY_FASTEST), &response);
  }
  EXPECT_THAT(List().canary().evidence(), HasSubstr("wrong bits found by audit"));
  Eventually([this] { return Metric("fulcrum_incidents_total{what=\"audit\"}") > 0; }, "incidents");
  Eventually([this] { return !server_->health().serving(); }, "the device still serves");
}

TEST_F(CanaryServiceTest, ChangesAndTheControlSurviveARestart) {
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

TEST_F(CanaryServiceTest, ADamagedJournalStopsTheStartAndSaysWhere) {
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

TEST_F(CanaryServiceTest, ShardsKeepTheirSideAndWatchersHearOfEveryStep) {
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

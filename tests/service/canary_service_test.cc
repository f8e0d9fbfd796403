// Canaries as an operator and callers see them: what is refused, and what the guards revert under
// load.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "kernels/numerics/bundle.h"
#include "tests/service/support/canary_node.h"

namespace fulcrum {
namespace {

using grpc::StatusCode;
using test::DetailOf;
using test::Eventually;
using ::testing::HasSubstr;

using CanaryServiceTest = test::CanaryNode;

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

}  // namespace
}  // namespace fulcrum

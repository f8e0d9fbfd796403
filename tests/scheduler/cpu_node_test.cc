// The scheduler half over the real CPU backend: bits of replies against the oracle, alone and among
// batch-mates, levers closed and open; the audit finds a planted fault.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/backend_factory.h"
#include "kernels/numerics/oracle.h"
#include "scheduler/auditor.h"
#include "scheduler/scheduler.h"
#include "scheduler/shard_store.h"
#include "tests/support/activation_call.h"
#include "tests/support/random_weights.h"
#include "tests/support/recording_observer.h"

namespace fulcrum {
namespace {

using test::ActivationCall;
using test::RandomActivations;
using test::RandomWeight;
using test::RecordingObserver;
using test::Submit;

constexpr int64_t kN = 72, kK = 640;

class CpuNodeTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override {
    auto backends = MakeBackends("cpu", {});
    ASSERT_TRUE(backends.ok()) << backends.status();
    backends_ = *std::move(backends);
    store_ = std::make_unique<ShardStore>(std::vector{backends_[0].get()}, nullptr);
    const auto shard = store_->Load({.name = "s",
                                     .family = Family::kFfnDown,
                                     .source = std::make_shared<test::MemoryWeight>(RandomWeight(
                                         GetParam(), kN, kK, test::WeightKind::kGaussian, 1)),
                                     .device = "",
                                     .expect_hash = ""});
    ASSERT_TRUE(shard.ok()) << shard.status();
    shard_ = *shard;
    auditor_ = std::make_unique<Auditor>(
        *store_, observer_,
        AuditorOptions{.outputs_per_batch = 16, .max_pending = 10000, .scrub_interval = {}});
    ASSERT_TRUE(levers_.Set({{"audit_rate", "1"}}, {}).ok());
    scheduler_ = std::make_unique<Scheduler>(std::vector{backends_[0].get()}, levers_, observer_,
                                             Checkers{.auditor = auditor_.get()}, clock_,
                                             SchedulerOptions{});
  }

  // Submits calls of 1, 2, 3, ... rows that wait together, and checks every reply's bits.
  void CheckCalls(Policy policy, NumericsClass numerics) {
    scheduler_->Pause();
    std::vector<std::shared_ptr<ActivationCall>> calls;
    for (int rows : {1, 2, 3, 7, 19, 32, 1}) {
      auto call = std::make_shared<ActivationCall>(
          shard_, RandomActivations(rows, kK, test::ActivationKind::kGaussian, seed_++));
      call->policy = policy;
      ASSERT_TRUE(Submit(*scheduler_, call).ok());
      calls.push_back(std::move(call));
    }
    scheduler_->Resume();
    for (const auto& call : calls) {
      ASSERT_TRUE(call->Await().ok()) << call->status;
      const Arm& arm = *call->provenance.arms[0];
      EXPECT_EQ(arm.numerics, numerics) << arm.name;
      std::vector<float> expected(static_cast<size_t>(call->rows * kN));
      ASSERT_TRUE(numerics::ReferenceProduct(numerics, *shard_->source, 0, kN, call->activations(),
                                             call->rows, expected)
                      .ok());
      ASSERT_EQ(call->outputs[0].size(), expected.size() * sizeof(float));
      EXPECT_EQ(std::memcmp(call->outputs[0].data(), expected.data(), call->outputs[0].size()), 0)
          << arm.name << ", " << call->rows << " of " << call->provenance.batch_rows << " rows";
    }
  }
  RecordingObserver::Totals Audited() {
    scheduler_->Drain(absl::InfiniteDuration());
    auditor_->Flush();
    return observer_.totals();
  }

  const Clock clock_{};
  LeverStore levers_{clock_};
  RecordingObserver observer_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::unique_ptr<ShardStore> store_;
  std::shared_ptr<const Shard> shard_;
  std::unique_ptr<Auditor> auditor_;
  std::unique_ptr<Scheduler> scheduler_;
  uint64_t seed_ = 100;
};

TEST_P(CpuNodeTest, RepliesAreTheOraclesBitsAloneAndAmongBatchMates) {
  CheckCalls(Policy::kBatchInvariant, NumericsClass::kExact);
  ASSERT_TRUE(levers_.Set({{"m16_tc", "all"}}, {}).ok());
  CheckCalls(Policy::kExact, NumericsClass::kExact);
  CheckCalls(Policy::kBatchInvariant,
             GetParam() == WeightFormat::kQ2_0 ? NumericsClass::kExact : NumericsClass::kBlockfold);
  const auto totals = Audited();
  EXPECT_GT(totals.audits.at(AuditResult::kMatch), 0);
  EXPECT_EQ(totals.audits.size(), 1u);
  EXPECT_TRUE(totals.incidents.empty());
}

TEST_P(CpuNodeTest, AFlippedWeightBitIsFoundByTheScrub) {
  auditor_->ScrubAll();
  ASSERT_TRUE(shard_->weight->FlipBit(shard_->weight->resident_bytes() / 2, 3).ok());
  auditor_->ScrubAll();
  const auto totals = Audited();
  EXPECT_EQ(totals.audits.at(AuditResult::kMatch), 1);
  EXPECT_EQ(totals.audits.at(AuditResult::kMismatch), 1);
  ASSERT_EQ(totals.incidents.size(), 1u);
  EXPECT_EQ(totals.incidents[0].what, "scrub");
}

INSTANTIATE_TEST_SUITE_P(Formats, CpuNodeTest, ::testing::ValuesIn(kAllWeightFormats),
                         [](const auto& param) { return std::string(Name(param.param)); });

}  // namespace
}  // namespace fulcrum

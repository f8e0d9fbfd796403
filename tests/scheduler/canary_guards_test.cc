// What reverts a canary by itself: wrong bits, slower kernels, failed launches, a lost operator.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/canary_rig.h"
#include "tests/support/event.h"

namespace fulcrum {
namespace {

using test::Submit;
using test::TestCall;
using ::testing::HasSubstr;

using CanaryGuardsTest = test::CanaryRig;

TEST_F(CanaryGuardsTest, AWrongArmIsRevertedBeforeItServedTwoHundredRows) {
  plant_->wrong = true;
  MustStart(Spec());
  RunUntilEnded();
  const CanaryReport report = AwaitEnd();
  EXPECT_EQ(report.state, CanaryState::kReverted);
  EXPECT_THAT(report.evidence, HasSubstr("shadow checks failed"));
  EXPECT_LT(plant_->wrong_rows.load(), 200);
  EXPECT_GT(plant_->wrong_rows.load(), 0);
  EXPECT_FALSE(OnCanary(*CallOnce()));
  const auto history = levers_.History();
  EXPECT_EQ(history.back().cause, LeverCause::kRevert);
  EXPECT_EQ(history.back().evidence, report.evidence);
}

TEST_F(CanaryGuardsTest, NoBatchIsPickedForTheCanaryAfterTheCheckThatFailed) {
  plant_->wrong = true;
  MustStart(Spec());
  const std::shared_ptr<CanaryValve> valve = levers_.View().canary->valve;
  bool failed = false;
  for (int i = 0; i < 200; ++i) {
    const bool canary = OnCanary(*CallOnce());
    EXPECT_FALSE(failed && canary) << "call " << i;
    // A batch is offered to the check after its reply; its rows count as ungraded before that.
    while (valve->ungraded_rows > 0) std::this_thread::yield();
    failed |= canary;
  }
  EXPECT_TRUE(failed);
}

TEST_F(CanaryGuardsTest, RowsThatWaitForTheirCheckBoundWhatAWrongArmServes) {
  // The checks stand still: whatever comes, the candidate gets no more than its allowance.
  test::Event checked;
  class Held : public Observer {
   public:
    Held(Observer& to, test::Event& until) : next(to), gate(until) {}
    void OnShadow(const ShadowEvent& event) override {
      gate.WaitForNotification();
      next.OnShadow(event);
    }
    Observer& next;
    test::Event& gate;
  } held(control_, checked);
  Shadow shadow(held, nullptr, {});
  Scheduler scheduler({&backend_}, levers_, control_, {nullptr, &shadow}, clock_, {});
  plant_->wrong = true;
  MustStart(Spec());
  for (int i = 0; i < 2000; ++i) {
    auto call = std::make_shared<TestCall>(std::vector{shard_}, 1 + i % 32, 0.5f);
    call->client = "client-" + std::to_string(i % 40);
    ASSERT_TRUE(Submit(scheduler, call).ok());
    ASSERT_TRUE(call->Await().ok());
  }
  EXPECT_LT(plant_->wrong_rows.load(), 200);
  EXPECT_GE(plant_->wrong_rows.load(), CanaryValve::kMaxUngradedRows);
  checked.Notify();
  EXPECT_EQ(AwaitEnd().state, CanaryState::kReverted);
  scheduler.Drain(absl::InfiniteDuration());
}

TEST_F(CanaryGuardsTest, OneWrongBitIsFoundByTheAuditAndReverts) {
  ASSERT_TRUE(levers_.Set({{"audit_rate", "1"}}, {}).ok());
  plant_->one_bit = true;  // within every budget
  MustStart(Spec());
  RunUntilEnded();
  const CanaryReport report = AwaitEnd();
  EXPECT_EQ(report.state, CanaryState::kReverted);
  EXPECT_THAT(report.evidence, HasSubstr("wrong bits found by audit"));
  auditor_.Flush();
  EXPECT_FALSE(observer_.totals().incidents.empty());
}

TEST_F(CanaryGuardsTest, AFivePercentSlowerArmIsRevertedAndAnEqualOneIsNot) {
  ASSERT_TRUE(levers_.Set({{"shadow_rate", "0"}}, {}).ok());
  plant_->slower = 1.05;
  MustStart(Spec());
  RunUntilEnded();
  const CanaryReport slow = AwaitEnd();
  EXPECT_EQ(slow.state, CanaryState::kReverted);
  EXPECT_THAT(slow.evidence, HasSubstr("kernel p50 of ffn_down decode, 2 to 2 rows"));
  ASSERT_EQ(slow.rows.size(), 1u);
  EXPECT_GT(slow.rows[0].canary_p50, slow.rows[0].control_p50);

  plant_->slower = 1.0;
  MustStart(Spec());
  for (int i = 0; i < 3000; ++i) CallOnce();
  EXPECT_EQ(control_.Last()->state, CanaryState::kRunning) << control_.Last()->evidence;
}

TEST_F(CanaryGuardsTest, FailedLaunchesRevert) {
  plant_->fails = true;
  MustStart(Spec());
  for (int i = 0; i < 1000 && control_.Last()->ended == absl::InfiniteFuture(); ++i) {
    auto call = std::make_shared<TestCall>(std::vector{shard_}, 1, 0.5f);
    call->client = "client-" + std::to_string(i % 40);
    ASSERT_TRUE(Submit(scheduler_, call).ok());
    call->Await();
  }
  const CanaryReport report = AwaitEnd();
  EXPECT_EQ(report.state, CanaryState::kReverted);
  EXPECT_THAT(report.evidence, HasSubstr("1 launches failed (limit 0): a planted fault"));
}

TEST_F(CanaryGuardsTest, ALostOperatorReverts) {
  CanarySpec spec = Spec();
  spec.guards.heartbeat = absl::Seconds(10);
  const uint64_t id = MustStart(spec);
  clock_.Advance(absl::Seconds(9));
  ASSERT_TRUE(control_.Heartbeat(id).ok());
  clock_.AwaitSleeper(clock_.Now() + absl::Seconds(10) + absl::Milliseconds(1));
  clock_.Advance(absl::Seconds(11));
  EXPECT_THAT(AwaitEnd().evidence, HasSubstr("no heartbeat for 10s"));
  EXPECT_TRUE(absl::IsFailedPrecondition(control_.Heartbeat(id).status()));
}

}  // namespace
}  // namespace fulcrum

// Calls that do not run in a scheduler over a held device and a still clock: bounds, deadlines,
// cancels, faults, drain.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/support/node_fixture.h"

namespace fulcrum {
namespace {

using test::MakeShard;
using test::StageOf;
using test::Submit;
using test::TestCall;
using ::testing::HasSubstr;

using SchedulerTest = test::NodeTest;

TEST_F(SchedulerTest, TheQueueBoundCountsWaitingRowsExactly) {
  Start({.max_queue_rows = 8});
  Occupy();
  for (int i = 0; i < 8; ++i) Submitted(1);
  const absl::Status ninth = Submit(*scheduler_, Call(1));
  EXPECT_TRUE(absl::IsResourceExhausted(ninth)) << ninth;
  EXPECT_THAT(std::string(ninth.message()), HasSubstr("8 rows wait"));
  EXPECT_EQ(scheduler_->queued_rows(), 8);
  EXPECT_EQ(scheduler_->inflight_calls(), 9);
  EXPECT_EQ(observer_.totals().rejects.at(RejectReason::kQueueRows), 1);
  backend_.Release();
  scheduler_->Drain(absl::InfiniteDuration());
  EXPECT_EQ(scheduler_->queued_rows(), 0);
}

TEST_F(SchedulerTest, TheByteBoundIsExactAndOverloadIsBounded) {
  Start({.max_queue_bytes = 1000});
  Occupy();
  int taken = 0, refused = 0;
  for (int i = 0; i < 100000; ++i) {  // 100 bytes a row
    const absl::Status status = Submit(*scheduler_, Call(1));
    status.ok() ? ++taken : ++refused;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }
  EXPECT_EQ(taken, 10);
  EXPECT_EQ(observer_.totals().rejects.at(RejectReason::kQueueBytes), refused);
}

TEST_F(SchedulerTest, ExpiredCallsNeverRunAndLeaveTheQueueAtOnce) {
  Start();
  const auto first = Occupy();
  std::vector<std::shared_ptr<TestCall>> calls;
  for (int i = 0; i < 50; ++i) {
    auto call = Call(1);
    call->deadline = clock_.Now() + absl::Milliseconds(5);
    calls.push_back(Submitted(call));
  }
  const auto patient = Submitted(2);
  clock_.Advance(absl::Milliseconds(5));
  for (const auto& call : calls) {  // while the device is still busy
    EXPECT_TRUE(absl::IsDeadlineExceeded(call->Await())) << call->status;
    EXPECT_THAT(std::string(call->status.message()), HasSubstr("stage queue after 5ms"));
    EXPECT_DOUBLE_EQ(StageOf(*call, Stage::kQueue), 5e-3);
    EXPECT_EQ(call->gathers, 0);
  }
  EXPECT_EQ(scheduler_->queued_rows(), 2);
  backend_.Release();
  ASSERT_TRUE(patient->Await().ok());
  EXPECT_EQ(observer_.totals().rows, 3);
  EXPECT_EQ(observer_.totals().rejects.at(RejectReason::kExpired), 50);

  auto late = Call(1);
  late->deadline = clock_.Now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Submit(*scheduler_, late)));
}

TEST_F(SchedulerTest, OverloadIsResourceExhaustedNeverUnavailable) {
  Start({.max_queue_rows = 32});
  Occupy();
  std::vector<std::shared_ptr<TestCall>> taken;
  for (int i = 0; i < 64; ++i) {
    auto call = Call(1);
    const absl::Status status = Submit(*scheduler_, call);
    if (status.ok()) {
      taken.push_back(call);
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    }
  }
  EXPECT_EQ(taken.size(), 32u);
  backend_.Release();
  for (const auto& call : taken) EXPECT_TRUE(call->Await().ok());
}

TEST_F(SchedulerTest, CancelBeforePickCompletesCancelledAndLaterDoesNothing) {
  Start();
  const auto running = Occupy();
  const auto waiting = Submitted(1);
  scheduler_->Cancel(waiting.get());
  EXPECT_TRUE(absl::IsCancelled(waiting->Await()));
  EXPECT_EQ(waiting->gathers, 0);
  scheduler_->Cancel(waiting.get());  // once is enough
  scheduler_->Cancel(running.get());  // picked: runs to its end
  backend_.Release();
  EXPECT_TRUE(running->Await().ok());
  scheduler_->Cancel(running.get());
  // From within its own gather and completion.
  auto self = Call(1);
  self->on_gather = self->on_complete = [&, raw = self.get()] { scheduler_->Cancel(raw); };
  EXPECT_TRUE(Submitted(self)->Await().ok());
  scheduler_->Drain(absl::InfiniteDuration());
  EXPECT_EQ(scheduler_->inflight_calls(), 0);
  EXPECT_EQ(observer_.totals().rejects.at(RejectReason::kCancelled), 1);
  EXPECT_EQ(observer_.totals().queue_rows, 0);
  EXPECT_EQ(observer_.totals().queue_bytes, 0);
}

TEST_F(SchedulerTest, AFaultFailsItsBatchAndTheNextRuns) {
  Start();
  Occupy();
  const auto a = Submitted(1), b = Submitted(1);
  backend_.Release(1);
  backend_.AwaitLaunches(2);
  backend_.FailNext(absl::InvalidArgumentError("bad pitch"), /*lost=*/false);
  backend_.Release();
  for (const auto& call : {a, b}) {
    EXPECT_TRUE(absl::IsInternal(call->Await())) << call->status;  // ours, never the caller's
    EXPECT_THAT(std::string(call->status.message()), HasSubstr("fake:0"));
    EXPECT_TRUE(call->outputs.empty());
  }
  EXPECT_TRUE(Submitted(1)->Await().ok());
  EXPECT_EQ(observer_.totals().faults, 1);
}

TEST_F(SchedulerTest, ALostDeviceRefusesWhatWaitsAndWhatComes) {
  Start();
  const auto running = Occupy();
  const auto waiting = Submitted(1);
  const auto other = MakeShard(backend_, "other", 9);
  auto elsewhere = std::make_shared<TestCall>(std::vector{other}, 1);
  Submitted(elsewhere);
  backend_.FailNext(absl::InternalError("sticky"), /*lost=*/true);
  backend_.Release();
  EXPECT_TRUE(absl::IsUnavailable(running->Await())) << running->status;
  EXPECT_TRUE(absl::IsUnavailable(waiting->Await())) << waiting->status;
  EXPECT_TRUE(absl::IsUnavailable(elsewhere->Await())) << elsewhere->status;
  EXPECT_TRUE(absl::IsUnavailable(Submit(*scheduler_, Call(1))));
  EXPECT_EQ(backend_.ran().size(), 1u);
  EXPECT_EQ(observer_.totals().faults, 1);
}

TEST_F(SchedulerTest, DrainRunsWhatWaitsRefusesWhatComesAndIsBounded) {
  Start();
  const auto running = Occupy();
  const auto waiting = Submitted(1);
  const absl::Time until = clock_.Now() + absl::Seconds(2);
  std::thread drain([&] { scheduler_->Drain(absl::Seconds(2)); });
  clock_.AwaitSleeper(until);
  EXPECT_TRUE(absl::IsUnavailable(Submit(*scheduler_, Call(1))));
  EXPECT_FALSE(waiting->done.HasBeenNotified());
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(absl::IsUnavailable(waiting->Await())) << waiting->status;
  EXPECT_FALSE(running->done.HasBeenNotified());  // a launch is never cut off
  backend_.Release();
  drain.join();
  EXPECT_TRUE(running->done.HasBeenNotified());
  EXPECT_TRUE(running->status.ok());
  scheduler_->Drain(absl::InfiniteDuration());
  EXPECT_EQ(observer_.totals().rejects.at(RejectReason::kDraining), 2);
}

TEST_F(SchedulerTest, PauseHoldsLaunchesWhileCallsQueueAndExpire) {
  Start();
  scheduler_->Pause();
  const auto patient = Submitted(1);
  auto urgent = Call(1);
  urgent->deadline = clock_.Now() + absl::Seconds(1);
  Submitted(urgent);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(urgent->Await()));
  EXPECT_TRUE(backend_.ran().empty());
  EXPECT_EQ(scheduler_->queued_rows(), 1);
  scheduler_->Resume();
  EXPECT_TRUE(patient->Await().ok());
}

}  // namespace
}  // namespace fulcrum

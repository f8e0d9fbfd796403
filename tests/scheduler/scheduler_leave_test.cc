// Calls that leave the queue without having run: whatever takes them out, what they end with and
// what is counted is decided by one rule, in which the deadline goes before all else.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "scheduler/waiting_room.h"
#include "tests/support/node_fixture.h"

namespace fulcrum {
namespace {

using test::Submit;
using test::TestCall;

class LeaveTest : public test::NodeTest {
 protected:
  std::shared_ptr<TestCall> Until(absl::Time deadline) {
    auto call = Call(1);
    call->deadline = deadline;
    return Submitted(call);
  }
  int64_t Count(RejectReason reason) {
    const auto totals = observer_.totals();
    const auto it = totals.rejects.find(reason);
    return it == totals.rejects.end() ? 0 : it->second;
  }
};

TEST_F(LeaveTest, ADeadlineAndACancelAtOnceAreOneExpiry) {
  Start();
  Occupy();
  constexpr int kCalls = 200;
  std::vector<std::shared_ptr<TestCall>> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(Until(clock_.Now() + absl::Milliseconds(50)));
  clock_.Advance(absl::Milliseconds(45));
  std::thread canceller([&] {
    for (const auto& call : calls) scheduler_->Cancel(call.get());
  });
  clock_.Advance(absl::Milliseconds(5));  // the expiry thread goes to work, too
  canceller.join();
  for (const auto& call : calls) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(call->Await())) << call->status;
    EXPECT_EQ(call->completions, 1);
    EXPECT_EQ(call->place.load(), CallPlace::kLeft);
  }
  EXPECT_EQ(Count(RejectReason::kExpired), kCalls);
  EXPECT_EQ(Count(RejectReason::kCancelled), 0);
}

TEST_F(LeaveTest, ACallersOwnClockIsADeadlineAndAnEarlierCancelIsNone) {
  Start();
  Occupy();
  const absl::Time deadline = clock_.Now() + absl::Seconds(2);
  const auto early = Until(deadline), late = Until(deadline);
  clock_.Advance(absl::Milliseconds(1900));
  scheduler_->Cancel(early.get());
  EXPECT_TRUE(absl::IsCancelled(early->Await())) << early->status;
  clock_.Advance(absl::Milliseconds(75));
  scheduler_->Cancel(late.get());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late->Await())) << late->status;
  EXPECT_EQ(Count(RejectReason::kCancelled), 1);
  EXPECT_EQ(Count(RejectReason::kExpired), 1);
}

TEST(CallersClock, IsOffByAPartOfTheTimeoutAtMost) {
  const absl::Time began = absl::FromUnixSeconds(1000);
  const auto over = [&](absl::Duration timeout, absl::Duration left) {
    return CallersTimeIsOver(began + timeout, began, began + timeout - left);
  };
  EXPECT_TRUE(over(absl::Milliseconds(20), absl::Milliseconds(5)));
  EXPECT_FALSE(over(absl::Milliseconds(20), absl::Milliseconds(6)));
  EXPECT_TRUE(over(absl::Seconds(30), absl::Milliseconds(300)));  // 30.001 s travel as 30100m
  EXPECT_FALSE(over(absl::Seconds(30), absl::Milliseconds(400)));
  EXPECT_TRUE(over(absl::Seconds(30), absl::Seconds(-1)));
  EXPECT_FALSE(CallersTimeIsOver(absl::InfiniteFuture(), began, began + absl::Hours(100)));
}

TEST_F(LeaveTest, TheEndOfADrainAtTheDeadlineIsTheDeadlines) {
  Start();
  const auto running = Occupy();
  const auto expiring = Until(clock_.Now() + absl::Seconds(2));
  const auto patient = Submitted(1);
  std::thread drain([&] { scheduler_->Drain(absl::Seconds(2)); });
  // The drain, and the loop that expires calls.
  clock_.AwaitSleeper(clock_.Now() + absl::Seconds(2), 2);
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(expiring->Await())) << expiring->status;
  EXPECT_TRUE(absl::IsUnavailable(patient->Await())) << patient->status;
  backend_.Release();
  drain.join();
  EXPECT_EQ(Count(RejectReason::kExpired), 1);
  EXPECT_EQ(Count(RejectReason::kDraining), 1);
}

TEST_F(LeaveTest, ALostDeviceDoesNotHideADeadline) {
  Start();
  scheduler_->Pause();
  const auto call = Until(clock_.Now() + absl::Seconds(1));
  backend_.set_healthy(false);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(call->Await())) << call->status;
  EXPECT_EQ(Count(RejectReason::kExpired), 1);
  backend_.set_healthy(true);
}

TEST_F(LeaveTest, CancelSaysWhereTheCallWas) {
  Start();
  const auto running = Occupy();
  const auto waiting = Submitted(1);
  const auto outside = Call(1);
  EXPECT_EQ(scheduler_->Cancel(outside.get()), CallPlace::kOutside);
  EXPECT_EQ(scheduler_->Cancel(running.get()), CallPlace::kRunning);
  EXPECT_EQ(scheduler_->Cancel(waiting.get(), LeaveBy::kDrain), CallPlace::kWaiting);
  EXPECT_TRUE(absl::IsUnavailable(waiting->Await())) << waiting->status;
  EXPECT_EQ(scheduler_->Cancel(waiting.get()), CallPlace::kLeft);
  EXPECT_EQ(Count(RejectReason::kDraining), 1);
}

TEST_F(LeaveTest, AHurryEndsWindowsAndStillTakesCalls) {
  SetLever("coalesce_window_us", "100000");
  Start();
  const auto held = Submitted(1);
  clock_.AwaitSleeper(clock_.Now() + absl::Milliseconds(100));
  EXPECT_FALSE(held->done.HasBeenNotified());
  scheduler_->Hurry();
  EXPECT_TRUE(held->Await().ok());
  EXPECT_TRUE(Submitted(1)->Await().ok());
}

TEST_F(LeaveTest, ADeviceWithoutWorkIsNeverStuckAndOneWithWorkCountsFromTheLastLaunch) {
  Start();
  const auto state = [this] { return scheduler_->Liveness().front(); };
  EXPECT_EQ(state().backend, &backend_);
  EXPECT_EQ(state().stuck_since, absl::InfiniteFuture());
  EXPECT_EQ(state().last_launch, absl::InfinitePast());
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(state().stuck_since, absl::InfiniteFuture());

  const absl::Time begun = clock_.Now();
  const auto first = Occupy();
  const auto second = Submitted(1);
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(state().stuck_since, begun);
  EXPECT_EQ(state().launching, 1);
  EXPECT_EQ(state().waiting, 1);
  backend_.Release(1);
  backend_.AwaitLaunches(2);
  EXPECT_EQ(state().last_launch, begun + absl::Minutes(1));
  EXPECT_EQ(state().stuck_since, begun + absl::Minutes(1));
  clock_.Advance(absl::Minutes(1));
  backend_.FailNext(absl::InternalError("no"), /*lost=*/false);
  backend_.Release();
  second->Await();
  scheduler_->Drain(absl::InfiniteDuration());
  EXPECT_EQ(state().last_launch, begun + absl::Minutes(1)) << "the second failed";
  EXPECT_EQ(state().stuck_since, absl::InfiniteFuture());
  EXPECT_EQ(state().ended_loops, 0);
}

}  // namespace
}  // namespace fulcrum

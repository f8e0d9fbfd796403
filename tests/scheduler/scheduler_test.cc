// The life of calls in a scheduler over a held device and a still clock: what runs, together
// with what, and in which order. Calls that do not run are scheduler_refusal_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/node_fixture.h"

namespace fulcrum {
namespace {

using test::FakeBackend;
using test::MakeShard;
using test::StageOf;
using test::Submit;
using test::TestCall;

using SchedulerTest = test::NodeTest;

TEST_F(SchedulerTest, RowsThatWaitWhileTheDeviceIsBusyRunTogether) {
  Start();
  const auto first = Occupy();
  std::vector<std::shared_ptr<TestCall>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(Submitted(1, static_cast<float>(10 * i), "c"));
  EXPECT_EQ(scheduler_->queued_rows(), 4);
  backend_.Release();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(calls[i]->Await().ok());
    EXPECT_EQ(calls[i]->Output(), 10 * i + 5);
    EXPECT_EQ(calls[i]->provenance.batch_rows, 4);
  }
  ASSERT_TRUE(first->Await().ok());
  const auto ran = backend_.ran();
  ASSERT_EQ(ran.size(), 2u);
  EXPECT_EQ(ran[1].m, 4);
  EXPECT_EQ(observer_.totals().launches, 2);
  EXPECT_EQ(observer_.totals().rows, 5);
}

TEST_F(SchedulerTest, ACallerThatMayRunItsCallDoesSoOnlyOnAnIdleDevice) {
  Start();
  const auto submit = [&](const std::shared_ptr<TestCall>& call) {
    std::shared_ptr<fulcrum::Call> given = call;
    return scheduler_->Submit(given, OnIdle::kRunHere);
  };
  // Busy: it waits with the others, and runs with them.
  const auto first = Occupy();
  const auto waits = Call(1, 1);
  ASSERT_TRUE(submit(waits).ok());
  EXPECT_EQ(waits->completions, 0);
  const auto mate = Submitted(1);
  backend_.Release();
  ASSERT_TRUE(waits->Await().ok() && mate->Await().ok());
  EXPECT_EQ(waits->provenance.batch_rows, 2);
  ASSERT_TRUE(first->Await().ok());
  // Idle: the call is complete when Submit returns.
  const auto alone = Call(1, 1);
  ASSERT_TRUE(submit(alone).ok());
  EXPECT_EQ(alone->completions, 1);
  EXPECT_EQ(alone->provenance.close_reason, CloseReason::kDeviceIdle);
  // Paused: nothing runs anywhere.
  scheduler_->Pause();
  const auto paused = Call(1, 1);
  ASSERT_TRUE(submit(paused).ok());
  EXPECT_EQ(paused->completions, 0);
  scheduler_->Resume();
  EXPECT_TRUE(paused->Await().ok());
  // Prefill is long: never on the caller's thread.
  scheduler_->Pause();
  auto prefill = Call(1, 1);
  prefill->step = Step::kPrefill;
  ASSERT_TRUE(submit(prefill).ok());
  scheduler_->Resume();
  EXPECT_TRUE(prefill->Await().ok());
  scheduler_->Drain(absl::Seconds(1));
  EXPECT_EQ(scheduler_->inflight_calls(), 0);
}

TEST_F(SchedulerTest, CallsRowsAndLaunchesAreCountedApart) {
  Start();
  Occupy();
  const auto a = Submitted(8), b = Submitted(1);
  backend_.Release();
  ASSERT_TRUE(a->Await().ok() && b->Await().ok());
  const auto totals = observer_.totals();
  EXPECT_EQ(totals.calls - 1, 2);
  EXPECT_EQ(totals.rows - 1, 9);
  EXPECT_EQ(totals.launches - 1, 1);
}

TEST_F(SchedulerTest, AReplySaysWhatComputedIt) {
  Start();
  SetLever("m16_tc", "ffn_down:m16");
  Occupy();
  auto call = Call(20, 3);
  call->output_type = DType::kBf16;
  Submitted(call);
  clock_.Advance(absl::Milliseconds(7));
  backend_.Release();
  ASSERT_TRUE(call->Await().ok());
  ASSERT_EQ(call->provenance.arms.size(), 1u);
  EXPECT_EQ(call->provenance.arms[0]->name, "w8a16_gemm_m16");
  EXPECT_EQ(call->provenance.batch_rows, 20);
  EXPECT_EQ(call->provenance.lever_epoch, 2u);
  EXPECT_EQ(call->provenance.close_reason, CloseReason::kDeviceIdle);
  EXPECT_DOUBLE_EQ(StageOf(*call, Stage::kQueue), 7e-3);
  EXPECT_DOUBLE_EQ(StageOf(*call, Stage::kCopyIn), 1e-6);
  EXPECT_DOUBLE_EQ(StageOf(*call, Stage::kKernel), 2e-6);
  EXPECT_DOUBLE_EQ(StageOf(*call, Stage::kCopyOut), 3e-6);
  EXPECT_EQ(call->outputs[0].size(), 20u * 4 * 2);  // BF16 [20, 4]
}

TEST_F(SchedulerTest, SeveralShardsShareOneBatchWithAnArmEach) {
  Start();
  SetLever("m16_tc", "attn_qkv:one_pass");
  const auto q = MakeShard(backend_, "q", 10, Family::kAttnQkv);
  const auto gate = MakeShard(backend_, "gate", 20, Family::kFfnGateUp);
  Occupy();
  auto both = std::make_shared<TestCall>(std::vector{q, gate}, 6, 1.0f);
  auto mate = std::make_shared<TestCall>(std::vector{q, gate}, 2, 2.0f);
  auto swapped = std::make_shared<TestCall>(std::vector{gate, q}, 1, 3.0f);
  Submitted(both);
  Submitted(mate);
  Submitted(swapped);
  backend_.Release();
  ASSERT_TRUE(both->Await().ok() && mate->Await().ok() && swapped->Await().ok());
  EXPECT_EQ(both->Output(0), 1 + 10 + FakeBackend::kNotExact);
  EXPECT_EQ(both->Output(1), 1 + 20);
  EXPECT_EQ(mate->Output(0), 2 + 10 + FakeBackend::kNotExact);
  EXPECT_EQ(mate->Output(1), 2 + 20);
  EXPECT_EQ(swapped->Output(0), 3 + 20);
  EXPECT_EQ(both->provenance.batch_rows, 8);  // the other order is another lane
  ASSERT_EQ(both->provenance.arms.size(), 2u);
  EXPECT_EQ(both->provenance.arms[0]->name, "w8a16_gemm_m32");
  EXPECT_EQ(both->provenance.arms[1]->name, "w8a16_gemv_batch16");
  EXPECT_EQ(observer_.totals().launches, 1 + 2 + 2);  // one event per shard
}

TEST_F(SchedulerTest, EveryCloseHasAReasonAndTheyAddUp) {
  Start();
  Occupy();
  std::vector<std::shared_ptr<TestCall>> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(Submitted(1));
  backend_.Release();
  for (const auto& call : calls) ASSERT_TRUE(call->Await().ok());
  const auto totals = observer_.totals();
  EXPECT_EQ(totals.rows, 101);
  EXPECT_EQ(totals.closes.at(CloseReason::kFull), 3);        // 32 + 32 + 32
  EXPECT_EQ(totals.closes.at(CloseReason::kDeviceIdle), 2);  // the first, and the last 4
}

TEST_F(SchedulerTest, AWindowHoldsABatchOnAFreeDeviceUntilItEnds) {
  Start();
  SetLever("coalesce_window_us", "10000");
  const auto a = Submitted(1);
  clock_.AwaitSleeper(clock_.Now() + absl::Milliseconds(10));  // a free slot saw it and held it
  EXPECT_TRUE(backend_.ran().empty());
  clock_.Advance(absl::Milliseconds(4));
  const auto b = Submitted(1);  // does not move the end: the batch opened with `a`
  clock_.Advance(absl::Milliseconds(6));
  ASSERT_TRUE(a->Await().ok() && b->Await().ok());
  EXPECT_EQ(a->provenance.batch_rows, 2);
  EXPECT_EQ(a->provenance.close_reason, CloseReason::kWindow);
  EXPECT_DOUBLE_EQ(StageOf(*a, Stage::kQueue), 10e-3);
  EXPECT_DOUBLE_EQ(StageOf(*b, Stage::kQueue), 6e-3);
}

TEST_F(SchedulerTest, FullDeadlineLeverAndDrainEndAWindowEarly) {
  Start();
  SetLever("coalesce_window_us", "10000");
  SetLever("max_batch_rows", "4");
  const auto held = Submitted(3);
  clock_.AwaitSleeper(clock_.Now() + absl::Milliseconds(10));
  const auto filler = Submitted(1);
  ASSERT_TRUE(held->Await().ok());
  EXPECT_EQ(held->provenance.close_reason, CloseReason::kFull);

  auto urgent = Call(1);
  urgent->deadline = clock_.Now() + absl::Milliseconds(5);
  ASSERT_TRUE(Submitted(urgent)->Await().ok());
  EXPECT_EQ(urgent->provenance.close_reason, CloseReason::kDeadline);

  // Another time than before: a slot may still sleep to the end of a window that closed early.
  clock_.Advance(absl::Milliseconds(1));
  const auto flipped = Submitted(1);
  clock_.AwaitSleeper(clock_.Now() + absl::Milliseconds(10));
  SetLever("audit_rate", "0");
  ASSERT_TRUE(flipped->Await().ok());
  EXPECT_EQ(flipped->provenance.close_reason, CloseReason::kLeverChange);
  EXPECT_EQ(flipped->provenance.lever_epoch, levers_.Snapshot()->epoch);

  clock_.Advance(absl::Milliseconds(1));
  const auto last = Submitted(1);
  clock_.AwaitSleeper(clock_.Now() + absl::Milliseconds(10));
  scheduler_->Drain(absl::InfiniteDuration());
  ASSERT_TRUE(last->Await().ok());
  EXPECT_EQ(last->provenance.close_reason, CloseReason::kDrain);
}

TEST_F(SchedulerTest, ACallLargerThanTheLeverRunsAlone) {
  Start();
  SetLever("max_batch_rows", "4");
  Occupy();
  const auto big = Submitted(32, 1, "big"), small = Submitted(3, 1, "small");
  backend_.Release();
  ASSERT_TRUE(big->Await().ok() && small->Await().ok());
  EXPECT_EQ(big->provenance.batch_rows, 32);
  EXPECT_EQ(big->provenance.close_reason, CloseReason::kFull);
  EXPECT_EQ(small->provenance.batch_rows, 3);
}

TEST_F(SchedulerTest, PrefillHasItsOwnBound) {
  Start({.max_prefill_rows = 100});
  Occupy();
  std::vector<std::shared_ptr<TestCall>> calls;
  for (int i = 0; i < 3; ++i) {
    auto call = Call(40);
    call->step = Step::kPrefill;
    calls.push_back(Submitted(call));
  }
  backend_.Release();
  for (const auto& call : calls) ASSERT_TRUE(call->Await().ok());
  EXPECT_EQ(calls[0]->provenance.batch_rows, 80);
  EXPECT_EQ(calls[2]->provenance.batch_rows, 40);
  EXPECT_EQ(calls[0]->provenance.arms[0]->name, "w8a16_gemv_pieces");
}

TEST_F(SchedulerTest, TheFirstQueueTimeStaysAndIsCountedOnce) {
  Start();
  Occupy();
  std::vector<std::shared_ptr<TestCall>> calls;
  for (int i = 0; i < 33; ++i) calls.push_back(Submitted(1));
  clock_.Advance(absl::Milliseconds(3));
  SetLever("m16_tc", "all:m16");
  backend_.Release(1);        // the occupier
  backend_.AwaitLaunches(2);  // 32 run, one stays behind
  clock_.Advance(absl::Milliseconds(4));
  backend_.Release();
  for (const auto& call : calls) ASSERT_TRUE(call->Await().ok());
  EXPECT_DOUBLE_EQ(StageOf(*calls[0], Stage::kQueue), 3e-3);
  EXPECT_DOUBLE_EQ(StageOf(*calls[32], Stage::kQueue), 7e-3);
  EXPECT_EQ(observer_.totals().queued_seconds.size(), 34u);
}

TEST_F(SchedulerTest, NoLockIsHeldWhileACallIsGatheredOrCompleted) {
  Start();
  auto call = Call(1);
  const auto touch = [&] {
    EXPECT_GE(scheduler_->inflight_calls(), 0);
    std::thread other([&] { Submitted(1); });  // another thread gets through, too
    other.join();
  };
  call->on_gather = call->on_complete = touch;
  EXPECT_TRUE(Submitted(call)->Await().ok());
}

TEST_F(SchedulerTest, AFloodOnOneShardDelaysOthersByOneLaunch) {
  Start();
  std::vector<std::shared_ptr<const Shard>> shards;
  for (int i = 0; i < 7; ++i) shards.push_back(MakeShard(backend_, "s" + std::to_string(i), i + 1));
  Occupy();
  for (int i = 0; i < 1000; ++i) Submitted(1, 1, "flood");
  clock_.Advance(absl::Milliseconds(1));
  std::vector<std::shared_ptr<TestCall>> others;
  for (const auto& shard : shards) {
    others.push_back(Submitted(std::make_shared<TestCall>(std::vector{shard}, 1)));
  }
  clock_.Advance(absl::Milliseconds(1));
  backend_.Release(1 + 1 + 7);  // the occupier, one launch of the flood, one for each other shard
  for (const auto& call : others) EXPECT_TRUE(call->Await().ok());
  backend_.AwaitLaunches(10);
  EXPECT_EQ(scheduler_->queued_rows(), 1000 - 64);
}

TEST_F(SchedulerTest, AFloodingClientDoesNotStarveAnother) {
  Start();
  Occupy();
  for (int i = 0; i < 1000; ++i) Submitted(1, 1, "flood");
  const auto other = Submitted(8, 2, "other");
  backend_.Release(2);  // the occupier and one batch
  EXPECT_TRUE(other->Await().ok());
  EXPECT_EQ(other->provenance.batch_rows, 32);
}

TEST_F(SchedulerTest, AnArmThatWasAskedForAndCouldNotRunIsCounted) {
  FakeBackend weak({.id = "fake:1", .description = "", .caps = kCapMma});
  Scheduler scheduler({&weak}, levers_, observer_, {}, clock_, {});
  SetLever("m16_tc", "ffn_down:one_pass");
  auto call = std::make_shared<TestCall>(std::vector{MakeShard(weak, "w", 1)}, 8);
  ASSERT_TRUE(Submit(scheduler, call).ok());
  ASSERT_TRUE(call->Await().ok());
  EXPECT_EQ(call->provenance.arms[0]->name, "w8a16_gemv_batch16");
  EXPECT_EQ(observer_.totals().declined.at("w8a16_gemm_m32>w8a16_gemv_batch16:capability"), 1);
  auto exact = std::make_shared<TestCall>(std::vector{MakeShard(weak, "w", 1)}, 8);
  exact->policy = Policy::kExact;
  ASSERT_TRUE(Submit(scheduler, exact).ok());
  ASSERT_TRUE(exact->Await().ok());
  EXPECT_EQ(observer_.totals().declined.size(), 1u);
  EXPECT_EQ(observer_.totals().declined.begin()->second, 1);
}

TEST_F(SchedulerTest, EverySlotOfADeviceTakesABatch) {
  Start({.slots_per_device = 3});
  backend_.Hold();
  const auto a = Submitted(1), b = Submitted(1), c = Submitted(1);
  std::vector<std::shared_ptr<TestCall>> calls = {a, b, c};
  backend_.AwaitLaunches(1);
  // Whatever coalesced, all three are running or done waiting for nothing but the device.
  for (size_t launches = 1; scheduler_->queued_rows() > 0; ++launches) {
    backend_.AwaitLaunches(launches + 1);
  }
  backend_.Release();
  for (const auto& call : calls) EXPECT_TRUE(call->Await().ok());
}

}  // namespace
}  // namespace fulcrum

// The rules of batching, with time as an argument.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/batching.h"

#include <gtest/gtest.h>

#include <optional>

#include "scheduler/canary.h"
#include "scheduler/observer.h"
#include "scheduler/shard_store.h"

namespace fulcrum {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(100);
constexpr absl::Duration kMs = absl::Milliseconds(1);

OpenBatch Rows(int64_t rows) {
  return {.rows = rows, .opened = kStart, .deadline = absl::InfiniteFuture()};
}

TEST(ShouldClose, WithoutAWindowAFreeSlotTakesWhatIsThere) {
  const BatchingPolicy policy{.max_rows = 32, .window = absl::ZeroDuration()};
  EXPECT_EQ(ShouldClose(Rows(0), kStart, policy), std::nullopt);
  EXPECT_EQ(ShouldClose(Rows(1), kStart, policy), CloseReason::kDeviceIdle);
  EXPECT_EQ(ShouldClose(Rows(31), kStart + kMs, policy), CloseReason::kDeviceIdle);
  EXPECT_EQ(ShouldClose(Rows(32), kStart, policy), CloseReason::kFull);
  EXPECT_EQ(ShouldClose(Rows(100), kStart, policy), CloseReason::kFull);
}

TEST(ShouldClose, AWindowHoldsUntilTheFirstOfItsEnds) {
  BatchingPolicy policy{.max_rows = 8, .window = 10 * kMs};
  EXPECT_EQ(ShouldClose(Rows(0), kStart + 20 * kMs, policy), std::nullopt);
  EXPECT_EQ(ShouldClose(Rows(7), kStart, policy), std::nullopt);
  EXPECT_EQ(ShouldClose(Rows(7), kStart + 10 * kMs - absl::Nanoseconds(1), policy), std::nullopt);
  EXPECT_EQ(ShouldClose(Rows(7), kStart + 10 * kMs, policy), CloseReason::kWindow);
  EXPECT_EQ(ShouldClose(Rows(8), kStart, policy), CloseReason::kFull);
  EXPECT_EQ(WindowEnd(Rows(1), policy), kStart + 10 * kMs);

  OpenBatch urgent = Rows(1);
  urgent.deadline = kStart + 10 * kMs;
  EXPECT_EQ(ShouldClose(urgent, kStart, policy), CloseReason::kDeadline);
  urgent.deadline += absl::Nanoseconds(1);
  EXPECT_EQ(ShouldClose(urgent, kStart, policy), std::nullopt);

  OpenBatch flipped = Rows(1);
  flipped.lever_changed = true;
  EXPECT_EQ(ShouldClose(flipped, kStart, policy), CloseReason::kLeverChange);

  policy.draining = true;
  EXPECT_EQ(ShouldClose(Rows(1), kStart, policy), CloseReason::kDrain);
}

LaneRank Rank(int since_ms, int deadline_ms, uint64_t turn = 0, uint64_t seq = 0) {
  return {.waiting_since = kStart + since_ms * kMs,
          .deadline = deadline_ms < 0 ? absl::InfiniteFuture() : kStart + deadline_ms * kMs,
          .turn = turn,
          .seq = seq};
}

TEST(GoesBefore, DeadlineThenLongestWaitWithABound) {
  const absl::Time now = kStart + 40 * kMs;
  const auto before = [&](const LaneRank& a, const LaneRank& b) {
    // A strict order: never both ways.
    EXPECT_FALSE(GoesBefore(a, b, now, 50 * kMs) && GoesBefore(b, a, now, 50 * kMs));
    return GoesBefore(a, b, now, 50 * kMs);
  };
  EXPECT_TRUE(before(Rank(30, 60), Rank(10, 70)));  // deadline
  EXPECT_TRUE(before(Rank(10, -1), Rank(30, -1)));  // longest wait
  EXPECT_TRUE(before(Rank(10, 60), Rank(30, 60)));
  EXPECT_TRUE(before(Rank(10, -1, 1, 9), Rank(10, -1, 2, 3)));  // turn
  EXPECT_TRUE(before(Rank(10, -1, 1, 3), Rank(10, -1, 1, 9)));  // submission
  EXPECT_FALSE(before(Rank(10, -1), Rank(10, -1)));
  // Beyond the bound deadlines do not count, among those the longest wait does.
  EXPECT_FALSE(before(Rank(-10, -1), Rank(30, 41)));
  EXPECT_TRUE(before(Rank(-11, -1), Rank(30, 41)));
  EXPECT_TRUE(before(Rank(-30, -1), Rank(-20, 41)));
}

TEST(Names, AreDistinctAndSpelledAsLabels) {
  EXPECT_EQ(Name(Stage::kCopyIn), "copy_in");
  EXPECT_EQ(Name(Stage::kReply), "reply");
  EXPECT_EQ(Name(CloseReason::kDrain), "drain");
  EXPECT_EQ(Name(CloseReason::kDeviceIdle), "device_idle");
  EXPECT_EQ(Name(RejectReason::kCancelled), "cancelled");
  EXPECT_EQ(Name(AuditResult::kError), "error");
  EXPECT_EQ(Name(ShardState::kFailed), "failed");
  EXPECT_EQ(Name(LeverSource::kBuiltIn), "built_in");
  EXPECT_EQ(Name(LeverSource::kRpc), "rpc");
  EXPECT_EQ(Name(LeverCause::kAbort), "abort");
  EXPECT_EQ(Name(ShadowResult::kError), "error");
  EXPECT_EQ(Name(CanaryUnit::kBatch), "batch");
  EXPECT_EQ(Name(CanarySuccess::kPromote), "promote");
  EXPECT_EQ(Name(CanaryState::kAborted), "aborted");
}

}  // namespace
}  // namespace fulcrum

// Snapshots, refusals, sources, events.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"

namespace fulcrum {
namespace {

using ::testing::HasSubstr;

TEST(LeverStore, SetPublishesAWholeNewSnapshot) {
  test::FakeClock clock;
  LeverStore store(clock);
  const auto before = store.Snapshot();
  const auto after =
      store.Set({{"m16_tc", "attn_o"}, {"audit_rate", "0.5"}}, {.actor = "me", .reason = "trial"});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(before->epoch, 1u);
  EXPECT_EQ(before->levers, LeverSet());  // immutable
  EXPECT_EQ((*after)->epoch, 2u);
  EXPECT_EQ(store.Snapshot(), *after);
  EXPECT_EQ((*after)->source[static_cast<size_t>(Lever::kM16Tc)], LeverSource::kRpc);
  EXPECT_EQ((*after)->source[static_cast<size_t>(Lever::kQ2Imma)], LeverSource::kBuiltIn);
  const std::vector<LeverEvent> history = store.History();
  ASSERT_EQ(history.size(), 2u);
  EXPECT_EQ(history[0].lever, "m16_tc");
  EXPECT_EQ(history[0].from, "off");
  EXPECT_EQ(history[0].to, "attn_o:one_pass");
  EXPECT_EQ(history[0].epoch, 2u);
  EXPECT_EQ(history[0].actor, "me");
  EXPECT_EQ(history[0].reason, "trial");
  EXPECT_EQ(history[0].cause, LeverCause::kSet);
  EXPECT_EQ(history[0].time, clock.Now());
}

TEST(LeverStore, RefusalsChangeNothing) {
  test::FakeClock clock;
  LeverSnapshot initial;
  initial.latched[static_cast<size_t>(Lever::kM16Tc)] = true;
  initial.source[static_cast<size_t>(Lever::kM16Tc)] = LeverSource::kEnvironment;
  LeverStore store(clock, initial);
  const auto refused = [&](const std::vector<LeverChange>& changes,
                           const LeverStore::SetOptions& options) {
    const auto before = store.Snapshot();
    const absl::Status status = store.Set(changes, options).status();
    EXPECT_EQ(store.Snapshot(), before);
    return status;
  };
  EXPECT_TRUE(absl::IsInvalidArgument(refused({{"audit_rate", "1"}, {"nope", "1"}}, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(refused({{"audit_rate", "1"}, {"q2_imma", "2"}}, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(refused({{"audit_rate", "1"}, {"audit_rate", "0"}}, {})));
  const absl::Status stale = refused({{"audit_rate", "1"}}, {.based_on_epoch = 7});
  EXPECT_TRUE(absl::IsAborted(stale));
  EXPECT_THAT(std::string(stale.message()), HasSubstr("epoch 1 is live"));
  for (LeverSource source : {LeverSource::kRpc, LeverSource::kJournal}) {
    const absl::Status latched =
        refused({{"audit_rate", "1"}, {"m16_tc", "all"}}, {.source = source});
    EXPECT_TRUE(absl::IsFailedPrecondition(latched));
    EXPECT_THAT(std::string(latched.message()), HasSubstr("environment"));
  }
  EXPECT_TRUE(store.History().empty());
  EXPECT_TRUE(store.Set({{"m16_tc", "all"}}, {.source = LeverSource::kConfig}).ok());
}

TEST(LeverStore, ValidateOnlyAndNoChangeMakeNoEpoch) {
  test::FakeClock clock;
  LeverStore store(clock);
  int told = 0;
  const auto subscription = store.Subscribe([&](const LeverEvent&) { ++told; });
  const auto would = store.Set({{"m16_tc", "all"}}, {.validate_only = true});
  ASSERT_TRUE(would.ok());
  EXPECT_EQ((*would)->epoch, 2u);
  EXPECT_EQ((*would)->levers.Print(Lever::kM16Tc), "all:one_pass");
  EXPECT_EQ(store.Snapshot()->epoch, 1u);
  EXPECT_EQ(told, 0);
  ASSERT_TRUE(store.Set({{"m16_tc", "all"}}, {.based_on_epoch = 1}).ok());
  EXPECT_EQ(told, 1);
  const auto same = store.Set({{"m16_tc", "all"}}, {});
  ASSERT_TRUE(same.ok());
  EXPECT_EQ((*same)->epoch, 2u);
  EXPECT_EQ(told, 1);
}

TEST(LeverStore, WhatAnRpcSetsToTheLiveValueOfAnotherSourceIsRecordedOnce) {
  test::FakeClock clock;
  LeverSnapshot initial;
  const auto at = static_cast<size_t>(Lever::kM16Tc);
  initial.source[at] = LeverSource::kConfig;
  LeverStore store(clock, initial);
  for (int i = 0; i < 2; ++i) {
    const auto set = store.Set({{"m16_tc", "off"}}, {});
    ASSERT_TRUE(set.ok());
    EXPECT_EQ((*set)->epoch, 2u);
    EXPECT_EQ((*set)->source[at], LeverSource::kRpc);
  }
  const auto history = store.History();
  ASSERT_EQ(history.size(), 1u);
  EXPECT_EQ(history[0].from, "off");
  EXPECT_EQ(history[0].to, "off");
  // From the journal it is an RPC's already.
  initial.source[at] = LeverSource::kJournal;
  LeverStore restarted(clock, initial);
  EXPECT_EQ((*restarted.Set({{"m16_tc", "off"}}, {}))->epoch, 1u);
}

TEST(LeverStore, ListenersHearInOrderMayReadAndStopWhenDropped) {
  test::FakeClock clock;
  LeverStore store(clock);
  std::vector<uint64_t> seen;
  auto subscription = store.Subscribe([&](const LeverEvent& event) {
    EXPECT_EQ(store.Snapshot()->epoch, event.epoch);  // published before it is told
    EXPECT_EQ(store.History().back().epoch, event.epoch);
    seen.push_back(event.epoch);
  });
  ASSERT_TRUE(store.Set({{"audit_rate", "1"}}, {}).ok());
  ASSERT_TRUE(store.Set({{"audit_rate", "0"}}, {}).ok());
  subscription.reset();
  ASSERT_TRUE(store.Set({{"audit_rate", "1"}}, {}).ok());
  EXPECT_EQ(seen, (std::vector<uint64_t>{2, 3}));
}

TEST(LeverStore, HistoryIsBounded) {
  test::FakeClock clock;
  LeverStore store(clock);
  for (int i = 0; i < 1500; ++i) {
    ASSERT_TRUE(store.Set({{"q2_imma", i % 2 ? "on" : "off"}}, {}).ok());
  }
  const auto history = store.History();
  EXPECT_EQ(history.size(), LeverStore::kHistory);
  EXPECT_EQ(history.back().epoch, 1501u);
}

TEST(LeverStore, ConcurrentWritersLoseNoChangeAndTearNoSnapshot) {
  test::FakeClock clock;
  LeverStore store(clock);
  std::vector<uint64_t> told;
  const auto subscription =
      store.Subscribe([&](const LeverEvent& event) { told.push_back(event.epoch); });
  std::atomic<int> applied{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        // Two levers move together; a reader must never see one without the other.
        const int rows = 1 + (t * 200 + i) % 32;
        const auto base = store.Snapshot();
        EXPECT_EQ(base->levers.number(Lever::kMaxBatchRows) * 10,
                  base->epoch == 1 ? 320 : base->levers.number(Lever::kCoalesceWindow));
        const auto set = store.Set({{"max_batch_rows", std::to_string(rows)},
                                    {"coalesce_window_us", std::to_string(rows * 10)}},
                                   {.based_on_epoch = base->epoch});
        if (set.ok() && (*set)->epoch == base->epoch + 1) ++applied;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store.Snapshot()->epoch, 1u + static_cast<uint64_t>(applied.load()));
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_GT(applied.load(), 0);
}

}  // namespace
}  // namespace fulcrum

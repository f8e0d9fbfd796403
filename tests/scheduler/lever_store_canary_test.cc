// Two sets of values side by side in the lever store, and its log.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "scheduler/lever_store.h"

namespace fulcrum {
namespace {

using ::testing::HasSubstr;

class MemoryLog : public LeverLog {
 public:
  absl::Status Append(const LeverStep& step) override {
    if (!error.ok()) return error;
    steps.push_back(step);
    return absl::OkStatus();
  }
  absl::Status error;
  std::vector<LeverStep> steps;
};

class LeverStoreCanary : public ::testing::Test {
 protected:
  static CanarySpec Spec(std::string lever = "m16_tc", std::string value = "attn_o") {
    CanarySpec spec{.changes = {{std::move(lever), std::move(value)}}, .share = 0.05};
    spec.actor = "me";
    spec.reason = "try";
    return spec;
  }
  uint64_t MustStart(const CanarySpec& spec = Spec()) {
    const auto started = store_.StartCanary(spec, 0, false);
    EXPECT_TRUE(started.ok()) << started.status();
    return started.ok() ? started->view.canary->id : 0;
  }
  std::string Value(const LeverSnapshot& snapshot, Lever lever = Lever::kM16Tc) {
    return snapshot.levers.Print(lever);
  }

  const Clock clock_{};
  MemoryLog log_;
  LeverStore store_{clock_, {}, {.log = &log_}};
};

TEST_F(LeverStoreCanary, StartsBesideTheControlWithEpochsOfItsOwn) {
  const uint64_t id = MustStart();
  const LeverView view = store_.View();
  ASSERT_NE(view.canary, nullptr);
  EXPECT_EQ(Value(*view.live), "off");
  EXPECT_EQ(Value(*view.canary->candidate), "attn_o:one_pass");
  EXPECT_EQ(view.canary->candidate->epoch, 2u);
  EXPECT_EQ(view.live->epoch, 3u);
  EXPECT_EQ(id, 2u);
  ASSERT_EQ(log_.steps.size(), 1u);
  const LeverEvent& event = log_.steps[0][0];
  EXPECT_EQ(event.cause, LeverCause::kCanaryStart);
  EXPECT_EQ(event.actor, "me");
  EXPECT_EQ(event.from, "off");
  EXPECT_EQ(event.to, "attn_o:one_pass");
  EXPECT_EQ(event.canary, id);
}

TEST_F(LeverStoreCanary, PromoteRevertAndAbortAreStepsOfTheirOwn) {
  for (LeverCause cause : {LeverCause::kRevert, LeverCause::kAbort, LeverCause::kPromote}) {
    const uint64_t id = MustStart();
    const LeverView running = store_.View();
    ASSERT_TRUE(store_.EndCanary(id, cause, "node", "because", "it shows").ok());
    const LeverView view = store_.View();
    EXPECT_EQ(view.canary, nullptr);
    EXPECT_EQ(view.live->epoch, running.live->epoch + 1);
    const bool promoted = cause == LeverCause::kPromote;
    EXPECT_EQ(Value(*view.live), promoted ? "attn_o:one_pass" : "off");
    EXPECT_EQ(running.canary->valve->closed.load(), !promoted);
    const LeverEvent& event = log_.steps.back()[0];
    EXPECT_EQ(event.cause, cause);
    EXPECT_EQ(event.from, promoted ? "off" : "attn_o:one_pass");
    EXPECT_EQ(event.evidence, "it shows");
    EXPECT_TRUE(absl::IsNotFound(store_.EndCanary(id, cause, "", "", "")));
  }
  EXPECT_EQ(store_.Snapshot()->source[static_cast<size_t>(Lever::kM16Tc)], LeverSource::kRpc);
}

TEST_F(LeverStoreCanary, OneAtATimeAndItsLeversAreNobodyElses) {
  const uint64_t id = MustStart();
  const auto second = store_.StartCanary(Spec("max_batch_rows", "8"), 0, false);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("canary 2 is running"));
  const auto set = store_.Set({{"m16_tc", "all"}}, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(set.status()));
  EXPECT_THAT(std::string(set.status().message()),
              HasSubstr("lever m16_tc is under canary 2 ('attn_o:one_pass' against 'off')"));
  ASSERT_TRUE(store_.EndCanary(id, LeverCause::kAbort, "", "", "").ok());
  EXPECT_TRUE(store_.Set({{"m16_tc", "all"}}, {}).ok());
}

TEST_F(LeverStoreCanary, OtherLeversChangeOnBothSides) {
  MustStart();
  const LeverView before = store_.View();
  ASSERT_TRUE(store_.Set({{"max_batch_rows", "8"}}, {}).ok());
  const LeverView after = store_.View();
  EXPECT_EQ(Value(*after.live, Lever::kMaxBatchRows), "8");
  EXPECT_EQ(Value(*after.canary->candidate, Lever::kMaxBatchRows), "8");
  EXPECT_EQ(Value(*after.canary->candidate), "attn_o:one_pass");
  EXPECT_EQ(after.canary->id, before.canary->id);
  EXPECT_EQ(after.canary->valve, before.canary->valve);
  EXPECT_GT(after.canary->candidate->epoch, before.live->epoch);
  EXPECT_GT(after.live->epoch, after.canary->candidate->epoch);
  // Nothing new: no epoch.
  ASSERT_TRUE(store_.Set({{"max_batch_rows", "8"}}, {}).ok());
  EXPECT_EQ(store_.Snapshot()->epoch, after.live->epoch);
}

TEST_F(LeverStoreCanary, WhatCannotBeTriedIsRefused) {
  LeverSnapshot latched;
  latched.latched[static_cast<size_t>(Lever::kM16Tc)] = true;
  LeverStore store(clock_, latched);
  EXPECT_TRUE(absl::IsFailedPrecondition(store.StartCanary(Spec(), 0, false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store_.StartCanary(Spec("m17", "on"), 0, false).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(store_.StartCanary(Spec("m16_tc", "off"), 0, false).status()));
  EXPECT_TRUE(absl::IsAborted(store_.StartCanary(Spec(), 99, false).status()));
  CanarySpec all = Spec();
  all.share = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(store_.StartCanary(all, 0, false).status()));
  EXPECT_TRUE(store_.StartCanary(Spec(), 0, /*validate_only=*/true).ok());
  EXPECT_EQ(store_.View().canary, nullptr);
  EXPECT_TRUE(log_.steps.empty());
}

TEST_F(LeverStoreCanary, WhatTheLogCannotKeepDoesNotHappenExceptARevert) {
  log_.error = absl::UnavailableError("disk full");
  const auto set = store_.Set({{"m16_tc", "all"}}, {});
  EXPECT_TRUE(absl::IsUnavailable(set.status()));
  EXPECT_THAT(std::string(set.status().message()), HasSubstr("nothing was changed: disk full"));
  EXPECT_TRUE(absl::IsUnavailable(store_.StartCanary(Spec(), 0, false).status()));
  EXPECT_EQ(store_.Snapshot()->epoch, 1u);

  log_.error = absl::OkStatus();
  const uint64_t id = MustStart();
  log_.error = absl::UnavailableError("disk full");
  EXPECT_TRUE(absl::IsUnavailable(store_.EndCanary(id, LeverCause::kPromote, "", "", "")));
  EXPECT_NE(store_.View().canary, nullptr);
  EXPECT_TRUE(absl::IsUnavailable(store_.EndCanary(id, LeverCause::kRevert, "", "", "")));
  EXPECT_EQ(store_.View().canary, nullptr);
}

TEST_F(LeverStoreCanary, NoChangeIsAcceptedBeforeWhatTookEffectIsOnRecord) {
  const LeverStep start = {{.epoch = 5, .lever = "m16_tc", .cause = LeverCause::kRevert}};
  LeverSnapshot initial;
  initial.epoch = 5;
  std::vector<LeverCause> told;
  LeverStore store(clock_, initial,
                   {.log = &log_,
                    .unwritten = {start},
                    .on_not_kept = [&](const LeverStep& step, const absl::Status& why) {
                      EXPECT_TRUE(absl::IsUnavailable(why));
                      told.push_back(step.front().cause);
                    }});
  EXPECT_TRUE(store.unwritten());
  log_.error = absl::UnavailableError("disk full");
  EXPECT_TRUE(absl::IsUnavailable(store.Set({{"m16_tc", "all"}}, {}).status()));
  EXPECT_TRUE(absl::IsUnavailable(store.StartCanary(Spec(), 0, false).status()));
  EXPECT_TRUE(absl::IsUnavailable(store.WriteUnwritten()));
  EXPECT_EQ(store.Snapshot()->epoch, 5u);
  EXPECT_EQ(told, (std::vector{LeverCause::kSet, LeverCause::kCanaryStart}));

  log_.error = absl::OkStatus();
  ASSERT_TRUE(store.Set({{"max_batch_rows", "8"}}, {}).ok());
  ASSERT_EQ(log_.steps.size(), 2u);
  EXPECT_EQ(log_.steps[0], start);
  EXPECT_EQ(log_.steps[1][0].epoch, 6u);
  EXPECT_FALSE(store.unwritten());

  // The end of a canary too, of which the log hears when it can.
  const auto started = store.StartCanary(Spec(), 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  const uint64_t id = started->view.canary->id;
  log_.error = absl::UnavailableError("disk full");
  for (int i = 0; i < 3; ++i) {  // told once, however often the node tries
    EXPECT_FALSE(store.EndCanary(id, LeverCause::kPromote, "", "", "").ok());
  }
  EXPECT_FALSE(store.EndCanary(id, LeverCause::kRevert, "", "", "").ok());
  EXPECT_EQ(told.size(), 4u);
  EXPECT_EQ(told.back(), LeverCause::kRevert);
  EXPECT_TRUE(absl::IsUnavailable(store.Set({{"max_batch_rows", "9"}}, {}).status()));
  log_.error = absl::OkStatus();
  EXPECT_TRUE(store.WriteUnwritten().ok());
  EXPECT_FALSE(store.unwritten());
  EXPECT_EQ(log_.steps.back()[0].cause, LeverCause::kRevert);
  EXPECT_TRUE(store.WriteUnwritten().ok());
  EXPECT_EQ(log_.steps.back()[0].epoch, store.Snapshot()->epoch);
}

TEST_F(LeverStoreCanary, HistoryBeginsWithEarlierLives) {
  std::vector<LeverEvent> past;
  for (uint64_t i = 1; i <= LeverStore::kHistory + 5; ++i) past.push_back({.epoch = i});
  LeverSnapshot start;
  start.epoch = past.back().epoch;
  LeverStore store(clock_, start, {.log = nullptr, .history = past});
  ASSERT_TRUE(store.Set({{"m16_tc", "all"}}, {}).ok());
  const auto history = store.History();
  ASSERT_EQ(history.size(), LeverStore::kHistory);
  EXPECT_EQ(history.front().epoch, 7u);
  EXPECT_EQ(history.back().epoch, LeverStore::kHistory + 6);
}

}  // namespace
}  // namespace fulcrum

// fulcrum ab --by batch: which replies count for which set, and on a node that nothing of the
// canary stays.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/ab_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "client/cli/ab_report.h"
#include "tests/client/support/run_app.h"
#include "tests/client/support/small_node.h"

namespace fulcrum::cli {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kA = 11, kB = 10;

// Every other reply is of the canary, which is three times as fast and says so by its arm.
class DrawingNode final : public StepNode {
 public:
  std::string Description() const override { return "drawing"; }
  absl::StatusOr<std::vector<StepWeight>> Weights() override { return std::vector<StepWeight>(); }
  absl::Status Prepare(const std::vector<DecodeCall>&, const StepInputs&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<StepReply> Call(size_t) override {
    ++calls;
    const bool canary = calls >= canary_from && calls < canary_until && calls % 2 == 0;
    const uint64_t epoch = calls == foreign_at ? 99 : canary ? kB : kA;
    return StepReply{.lever_epoch = epoch,
                     .batch_rows = 16,
                     .kernel = canary ? 1.0 : 3.0,
                     .arms = {canary ? "fast" : "plain"}};
  }
  void EndBy(absl::Time) override {}
  absl::StatusOr<LiveLevers> Levers() override { return absl::InternalError("not asked"); }
  absl::StatusOr<LiveLevers> SetLevers(const LeverValues&, uint64_t, const std::string&) override {
    return absl::InternalError("no lever is turned");
  }
  absl::StatusOr<std::vector<std::string>> Declined(size_t) override {
    return absl::InternalError("not asked");
  }
  int calls = 0, foreign_at = 0, canary_from = 0, canary_until = 1 << 30;
};

class AbSplitTest : public testing::Test {
 protected:
  absl::StatusOr<AbResult> Run() {
    return RunSplitAb(node_, calls_, {.name = "a", .values = {}}, {.name = "b", .values = {}},
                      options_, split_);
  }
  DrawingNode node_;
  const std::vector<DecodeCall> calls_ = {
      {.phase = Phase::kSsm, .weights = {StepWeight{.name = "a"}}},
      {.phase = Phase::kFfn, .weights = {StepWeight{.name = "b"}}},
      {.phase = Phase::kFfn, .weights = {StepWeight{.name = "c"}}}};
  AbOptions options_ = {.rows = 16, .rounds = 6, .settle = 1};
  int beats_ = 0;
  AbSplit split_ = {.epoch_a = kA, .epoch_b = kB, .alive = [this] {
                      ++beats_;
                      return absl::OkStatus();
                    }};
};

TEST_F(AbSplitTest, EveryReplyCountsForTheSetWhoseEpochItHas) {
  const auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->sides.size(), 2u);
  for (const bool b : {false, true}) {
    const AbSide& side = result->sides[b];
    ASSERT_EQ(side.samples.size(), 6u);
    for (const StepSample& sample : side.samples) {
      EXPECT_EQ(sample.epochs, std::set<uint64_t>{b ? kB : kA});
      EXPECT_EQ(sample.whole.kernel, b ? 3.0 : 9.0);
      EXPECT_EQ(sample.of(Phase::kFfn).kernel, b ? 2.0 : 6.0);
      EXPECT_EQ(sample.arms, std::vector(3, std::vector<std::string>{b ? "fast" : "plain"}));
      EXPECT_GT(sample.whole.wall, 0);
    }
  }
  const auto rows = CompareSides(calls_, result->sides[0], result->sides[1]);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_NEAR(rows[1].kernel.median, 1.0 / 3 - 1, 1e-12);
  EXPECT_FALSE(rows[1].same_arms);
  EXPECT_EQ(beats_, 1);  // some seconds have not passed
}

TEST_F(AbSplitTest, AnotherEpochEndsIt) {
  node_.foreign_at = 2;  // although it settles: who turns levers now does so later too
  const auto result = Run();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("lever epoch 99"));
  EXPECT_EQ(beats_, 2);  // the node was asked what became of the canary
}

TEST_F(AbSplitTest, ACanaryThatIsOverEndsIt) {
  split_.alive = [] { return absl::FailedPreconditionError("it is over"); };
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(AbSplitTest, NothingIsMeasuredBeforeBothGetTheirShare) {
  node_.canary_from = 1000;
  const auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(node_.calls, 1000 + 2 * 6 * 3);
}

TEST_F(AbSplitTest, ASideThatNeverGetsItsShareEndsIt) {
  node_.canary_until = 0;
  split_.patience = absl::ZeroDuration();
  const auto result = Run();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("0 were of one of the sets"));
}

TEST_F(AbSplitTest, ASideThatGetsNoMoreEndsIt) {
  node_.canary_until = 110;  // the share is found at the call 102
  const auto result = Run();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("1 replies of one of the sets"));
}

TEST_F(AbSplitTest, AStopEndsIt) {
  int asked = 0;
  options_.stop = [&] { return ++asked > 2; };
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kCancelled);
}

class AbByBatch : public testing::Test {
 protected:
  AppRun Ab(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--target", node_.address(), "ab",      "--by", "batch",
                                          "--model",  "small",         "--batch", "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunFulcrum(arguments);
  }
  AppRun Levers(std::vector<std::string> more) {
    more.insert(more.begin(), {"--target", node_.address(), "levers"});
    return RunFulcrum(more);
  }
  // How the levers came to be as they are.
  std::vector<std::string> Causes() {
    std::vector<std::string> causes;
    const auto history = Levers({"history", "--json"}).Json();
    for (const auto& event : history["events"]) {
      causes.push_back(event["cause"].get<std::string>());
    }
    return causes;
  }
  const std::vector<std::string> sets_ = {"--sets", "now:", "--sets",
                                          "ffn:m16_tc=ffn_gate_up,ffn_down"};
  std::vector<std::string> With(std::vector<std::string> more) {
    more.insert(more.begin(), sets_.begin(), sets_.end());
    return more;
  }
  const test::SmallNode node_;
};

TEST_F(AbByBatch, BothEpochsAreComparedAndNothingStays) {
  const AppRun run = Ab(With({"--rounds", "8", "--json"}));
  ASSERT_EQ(run.exit, 0) << run.err;
  const auto json = run.Json();
  EXPECT_EQ(json["by"], "batch");
  EXPECT_EQ(json["policy"], "fastest");
  const auto& phases = json["comparisons"][0]["phases"];
  EXPECT_EQ(phases["ffn"]["tiers_a"], "cpu_w8a16_exact");
  EXPECT_EQ(phases["ffn"]["tiers_b"], "cpu_w8a16_blockfold");
  EXPECT_EQ(phases["ffn"]["same_arms"], false);
  EXPECT_EQ(phases["ssm"]["same_arms"], true);
  EXPECT_LE(phases["step"]["change"]["low"], phases["step"]["change"]["high"]);
  const auto& canary = json["canary"];
  EXPECT_EQ(canary["state"], "aborted");
  EXPECT_EQ(canary["unit"], "batch");
  EXPECT_EQ(canary["share"], 0.5);
  EXPECT_EQ(canary["comparisons"].size(), 2u);  // the families of ffn
  EXPECT_GE(canary["comparisons"][0]["canary"]["batches"], 8);
  EXPECT_EQ(node_.Lever("m16_tc"), "off");
  EXPECT_EQ(Causes(), (std::vector<std::string>{"canary_start", "abort"}));
}

TEST_F(AbByBatch, TheFirstSetIsTurnedOnAndBackWhereItIsNotLive) {
  const AppRun run = Ab({"--rounds", "6", "--sets", "all:m16_tc=all", "--sets", "off:m16_tc=off"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("off against all"));
  EXPECT_THAT(run.out, HasSubstr("cpu_w8a16_blockfold -> cpu_w8a16_exact"));
  EXPECT_THAT(run.out, HasSubstr("what the node compared"));
  EXPECT_EQ(node_.Lever("m16_tc"), "off");
  EXPECT_EQ(Causes(), (std::vector<std::string>{"set", "canary_start", "abort", "set"}));
}

TEST_F(AbByBatch, AnInterruptAbortsTheCanary) {
  std::atomic<bool> over{false};
  std::thread interrupts([&] {
    while (!over && Causes().empty()) std::this_thread::yield();
    if (!over) std::raise(SIGINT);  // the command notes it while its canary runs
  });
  const AppRun run = Ab(With({"--rounds", "1000000"}));
  over = true;
  interrupts.join();
  EXPECT_EQ(run.exit, 1);
  EXPECT_THAT(run.err, HasSubstr("asked to stop"));
  EXPECT_EQ(Causes(), (std::vector<std::string>{"canary_start", "abort"}));
}

TEST_F(AbByBatch, SomebodyWhoEndsTheCanaryEndsIt) {
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over && Levers({"abort"}).exit != 0) std::this_thread::yield();
  });
  const AppRun run = Ab(With({"--rounds", "1000000"}));
  over = true;
  other.join();
  EXPECT_EQ(run.exit, 1);
  EXPECT_THAT(run.err, HasSubstr("was aborted"));
}

TEST_F(AbByBatch, WhatCannotBeIsToldBeforeALeverIsTurned) {
  const auto refused = [](const AppRun& run, int exit) {
    EXPECT_EQ(run.exit, exit) << run.out;
    return run.err;
  };
  EXPECT_THAT(refused(Ab(With({"--sets", "tile:m16_tc=ffn_gate_up:m16_n64"})), 2),
              HasSubstr("expected two --sets, got 3"));
  EXPECT_THAT(refused(Ab({"--sets", "now:"}), 2), HasSubstr("expected two --sets, got 1"));
  EXPECT_THAT(refused(Ab(With({"--in-process"})), 2), HasSubstr("--in-process"));
  EXPECT_THAT(refused(Ab(With({"--control"})), 2), HasSubstr("--control"));
  EXPECT_THAT(refused(Ab(With({"--policy", "batch_invariant"})), 2), HasSubstr("--policy"));
  EXPECT_THAT(refused(Ab({"--sets", "now:", "--sets", "off:m16_tc=off"}), 1),
              HasSubstr("both sets are the same"));
  EXPECT_TRUE(Causes().empty());

  ASSERT_EQ(Levers({"set", "m16_tc=all", "--canary", "50%", "--by", "client"}).exit, 0);
  EXPECT_THAT(refused(Ab(With({})), 1), HasSubstr("runs already (m16_tc)"));
  EXPECT_EQ(Causes(), (std::vector<std::string>{"canary_start"}));
}

}  // namespace
}  // namespace fulcrum::cli

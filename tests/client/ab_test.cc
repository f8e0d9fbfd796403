// fulcrum ab: rounds that count, levers turned back, declines, and what runs in process.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/cli/ab_run.h"
#include "client/cli/interrupt.h"
#include "client/cli/remote_step_node.h"
#include "client/cpp/client.h"
#include "tests/client/support/fake_node.h"
#include "tests/client/support/run_app.h"
#include "tests/client/support/small_node.h"

namespace fulcrum::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three phases of one call each. Runs the arm that its only lever names, but has no "best".
class ScriptedNode final : public StepNode {
 public:
  std::string Description() const override { return "scripted"; }
  absl::StatusOr<std::vector<StepWeight>> Weights() override { return std::vector<StepWeight>(); }
  absl::Status Prepare(const std::vector<DecodeCall>&, const StepInputs&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<StepReply> Call(size_t) override {
    ++calls;
    const uint64_t replied = calls >= foreign_from && calls < foreign_to ? epoch + 100 : epoch;
    return StepReply{.lever_epoch = replied,
                     .batch_rows = 16,
                     .kernel = 1,
                     .arms = {live == "best" ? "plain" : live}};
  }
  void EndBy(absl::Time deadline) override { end_by = deadline; }
  absl::StatusOr<LiveLevers> Levers() override {
    if (gone) return absl::UnavailableError("gone");
    return LiveLevers{.epoch = epoch, .values = {{"arm", live}}};
  }
  absl::StatusOr<LiveLevers> SetLevers(const LeverValues& values, uint64_t based_on_epoch,
                                       const std::string&) override {
    if (!refuses.ok()) return refuses;
    if (based_on_epoch != epoch) return absl::AbortedError("stale");
    if (values.at("arm") != live) ++epoch;
    live = values.at("arm") == "alias" ? "fast" : values.at("arm");
    turned.push_back(live);
    return Levers();
  }
  absl::StatusOr<std::vector<std::string>> Declined(size_t) override {
    return std::vector<std::string>{live == "best" ? "best" : ""};
  }

  std::string live = "plain";
  uint64_t epoch = 7;
  std::vector<std::string> turned;
  int calls = 0, foreign_from = 0, foreign_to = 0;
  absl::Status refuses;  // any change of a lever
  bool gone = false;
  absl::Time end_by = absl::InfiniteFuture();
};

class AbTest : public testing::Test {
 protected:
  absl::StatusOr<AbResult> Run(std::vector<std::string> texts, int rounds = 6) {
    std::vector<LeverSetting> settings;
    for (const std::string& text : texts) settings.push_back(*ParseLeverSetting(text));
    auto loan = *LeverLoan::Take(node_, settings);
    auto result = RunAb(node_, loan, calls_, settings, {.rounds = rounds, .stop = stop_});
    EXPECT_TRUE(loan.GiveBack().ok());
    return result;
  }
  ScriptedNode node_;
  const std::vector<DecodeCall> calls_ = {
      {.phase = Phase::kSsm, .weights = {StepWeight{.name = "a"}}},
      {.phase = Phase::kFfn, .weights = {StepWeight{.name = "b"}}},
      {.phase = Phase::kLmHead, .weights = {StepWeight{.name = "c"}}}};
  std::function<bool()> stop_;
};

TEST_F(AbTest, RoundsAlternateTheirDirectionAndLeversGoBack) {
  const auto result = Run({"now:", "x:arm=fast", "y:arm=best"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->discarded_rounds, 0);
  for (const AbSide& side : result->sides) EXPECT_EQ(side.samples.size(), 6u);
  node_.turned.resize(6);
  EXPECT_THAT(node_.turned, ElementsAre("plain", "fast", "best", "best", "fast", "plain"));
  EXPECT_EQ(node_.live, "plain");
}

TEST_F(AbTest, ADeclineIsNamedAndTheSameArmsAreSeen) {
  const auto result = Run({"now:", "x:arm=fast", "y:arm=best"});
  ASSERT_TRUE(result.ok());
  const AbSide &now = result->sides[0], &fast = result->sides[1], &best = result->sides[2];
  EXPECT_TRUE(now.declines.empty());
  ASSERT_EQ(best.declines.size(), 3u);
  EXPECT_EQ(best.declines[0].asked, "best");
  EXPECT_EQ(best.declines[0].ran, "plain");
  EXPECT_EQ(best.declines[0].weights, 1);
  EXPECT_FALSE(SameArms(calls_, now.samples[0], fast.samples[0], Phase::kFfn));
  EXPECT_TRUE(SameArms(calls_, now.samples[0], best.samples[0], Phase::kFfn));
}

TEST_F(AbTest, ARoundWithAForeignEpochIsRunAgain) {
  node_.foreign_from = 4;  // in the first measured step, behind three calls that settle
  node_.foreign_to = 5;
  const auto result = Run({"now:", "x:arm=fast"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->discarded_rounds, 1);
  for (const AbSide& side : result->sides) {
    ASSERT_EQ(side.samples.size(), 6u);
    for (const StepSample& sample : side.samples) EXPECT_EQ(sample.epochs.size(), 1u);
  }
}

TEST_F(AbTest, LeversThatSomebodyElseTurnsEndIt) {
  node_.foreign_to = 1 << 30;
  EXPECT_EQ(Run({"now:", "x:arm=fast"}).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(node_.live, "plain");
}

TEST_F(AbTest, AStopTurnsLeversBack) {
  int asked = 0;
  stop_ = [&] { return ++asked > 2; };
  EXPECT_EQ(Run({"x:arm=fast", "y:arm=best"}).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(node_.live, "plain");
}

TEST_F(AbTest, AnOperatorsChangeEndsItAndStays) {
  std::vector<LeverSetting> settings = {*ParseLeverSetting("x:arm=fast"),
                                        *ParseLeverSetting("y:arm=best")};
  auto loan = *LeverLoan::Take(node_, settings);
  int asked = 0;
  const auto operator_sets = [&] {
    if (++asked == 4) {
      node_.live = "operators";
      ++node_.epoch;
    }
    return false;
  };
  const auto result = RunAb(node_, loan, calls_, settings, {.rounds = 6, .stop = operator_sets});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("lever arm is operators"));
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("epoch " + std::to_string(node_.epoch) + " is live"));
  const absl::Status back = loan.GiveBack();
  EXPECT_EQ(back.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(back.message()), HasSubstr("lever arm is operators"));
  EXPECT_EQ(node_.live, "operators");
}

TEST_F(AbTest, AnEpochOfOtherLeversDoesNotKeepOursTurned) {
  std::vector<LeverSetting> settings = {*ParseLeverSetting("x:arm=alias")};
  auto loan = *LeverLoan::Take(node_, settings);
  ASSERT_TRUE(loan.Apply(settings[0]).ok());
  EXPECT_EQ(node_.live, "fast");  // as the node writes it
  ++node_.epoch;
  EXPECT_TRUE(loan.GiveBack().ok());
  EXPECT_EQ(node_.live, "plain");
}

TEST_F(AbTest, WhatIsNotTurnedBackIsNamedWithTheWayBack) {
  std::vector<LeverSetting> settings = {*ParseLeverSetting("x:arm=alias")};
  for (const bool gone : {false, true}) {
    auto loan = *LeverLoan::Take(node_, settings);
    ASSERT_TRUE(loan.Apply(settings[0]).ok());
    node_.refuses = absl::UnavailableError("no room in the journal");
    node_.gone = gone;
    const absl::Status back = loan.GiveBack();
    EXPECT_EQ(back.code(), absl::StatusCode::kUnavailable);
    const std::string said(back.message());
    EXPECT_THAT(said, HasSubstr("no room in the journal"));
    EXPECT_THAT(said, HasSubstr(gone ? "lever arm may still be fast" : "lever arm is fast"));
    EXPECT_THAT(said, HasSubstr("`fulcrum --target scripted levers set 'arm=plain'`"));
    EXPECT_LE(node_.end_by - absl::Now(), absl::Seconds(10)) << "a node that is gone holds it";
    node_.refuses = absl::OkStatus();
    node_.gone = false;
    node_.live = "plain";
  }
}

TEST_F(AbTest, AnAnswerThatWasLostIsNoLeverThatStaysTurned) {
  std::vector<LeverSetting> settings = {*ParseLeverSetting("x:arm=fast")};
  auto loan = *LeverLoan::Take(node_, settings);
  ASSERT_TRUE(loan.Apply(settings[0]).ok());
  node_.live = "plain";
  node_.refuses = absl::UnavailableError("the connection broke");
  EXPECT_TRUE(loan.GiveBack().ok());
}

TEST(RemoteStepNode, ANodeThatDoesNotAnswerIsGivenUpAtTheDeadline) {
  client::FakeNode fake;
  absl::Notification over;
  fake.set_levers = [&](const v1::SetLeversRequest&, v1::SetLeversResponse*) {
    over.WaitForNotification();
    return grpc::Status::OK;
  };
  const auto node = MakeRemoteStepNode(*client::Client::Connect(fake.target()), fake.target(), "m",
                                       absl::Minutes(1));
  node->EndBy(absl::Now() + absl::Milliseconds(300));
  const absl::Time start = absl::Now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(node->SetLevers({{"a", "b"}}, 1, "").status()));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  over.Notify();
}

TEST(RemoteStepNode, AWeightThatIsReplacedEndsTheMeasurement) {
  client::FakeNode fake;
  uint64_t version = 1;
  fake.project = [&](grpc::ServerContext*, const v1::ProjectRequest* request,
                     v1::ProjectResponse* response) {
    const grpc::Status status = client::SumRows(*request, 4, response);
    for (v1::ShardOutput& output : *response->mutable_outputs()) output.set_version(version);
    return status;
  };
  const auto node = MakeRemoteStepNode(*client::Client::Connect(fake.target()), fake.target(), "m",
                                       absl::Minutes(1));
  DecodeCall call;
  call.weights = {{.name = "models/m/shards/a", .n = 4, .k = 8}};
  call.k = 8;
  ASSERT_TRUE(node->Prepare({call}, {.rows = 2}).ok());
  ASSERT_TRUE(node->Call(0).ok());
  ASSERT_TRUE(node->Call(0).ok());
  version = 2;
  const absl::Status replaced = node->Call(0).status();
  EXPECT_TRUE(absl::IsAborted(replaced)) << replaced;
  EXPECT_NE(replaced.message().find("models/m/shards/a was replaced"), absl::string_view::npos);
}

TEST(Interrupts, SignalsAtOnceAreOneRequestAndASecondChangesNothing) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    {
      const Interrupt interrupt;
      for (int i = 0; i < 5; ++i) std::raise(signal);
      EXPECT_TRUE(interrupt.asked()) << signal;
    }
    const Interrupt interrupt(absl::ZeroDuration());
    std::raise(signal);
    std::raise(signal);
    EXPECT_TRUE(interrupt.asked()) << signal;
  }
}

TEST(InterruptsDeathTest, TheThirdEndsItAndSaysWhatMayBeLeft) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EXIT(
        {
          const Interrupt interrupt(absl::ZeroDuration());
          for (const int one : {SIGINT, SIGHUP, signal}) std::raise(one);
        },
        testing::KilledBySignal(signal), "may still be turned.*`fulcrum levers history`");
  }
}

TEST(Interrupts, AskOnceAndNohupStays) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const Interrupt interrupt;
    EXPECT_FALSE(interrupt.asked());
    std::raise(signal);
    EXPECT_TRUE(interrupt.asked()) << signal;
  }
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const Interrupt interrupt;
    std::raise(SIGHUP);
    EXPECT_FALSE(interrupt.asked());
  }
  std::signal(SIGHUP, before);
}

TEST(Interrupts, AReaderThatIsGoneIsAWriteThatFails) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  {
    const Interrupt interrupt;
    EXPECT_EQ(::write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
    EXPECT_FALSE(interrupt.asked());
  }
  ::close(ends[1]);
  struct sigaction now {};
  ::sigaction(SIGPIPE, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

TEST(LeverSet, NamesAndValues) {
  const auto set = ParseLeverSetting("both: m16_tc=attn_o:m16,ffn_down ; max_batch_rows=8");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->name, "both");
  EXPECT_EQ(set->values.at("m16_tc"), "attn_o:m16,ffn_down");
  EXPECT_EQ(set->values.at("max_batch_rows"), "8");
  EXPECT_EQ(ParseLeverSetting("m16_tc=attn_o:m16")->name, "m16_tc=attn_o:m16");
  EXPECT_TRUE(ParseLeverSetting("base:")->values.empty());
  for (const char* wrong : {"", ":", "a:b", "a:=1", "a:x=1;x=2"}) {
    EXPECT_FALSE(ParseLeverSetting(wrong).ok()) << wrong;
  }
}

const std::vector<std::string> kSets = {"--sets", "off:m16_tc=off",
                                        "--sets", "ffn:m16_tc=ffn_gate_up,ffn_down",
                                        "--sets", "tile:m16_tc=ffn_gate_up:m16_n64"};

AppRun Ab(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), kSets.begin(), kSets.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunFulcrum(arguments);
}

TEST(AbCommand, InProcessWithAControl) {
  const AppRun run = Ab({"ab", "--in-process", "--backend", "cpu", "--threads", "1", "--model",
                         "small", "--batch", "4", "--rounds", "6", "--control"},
                        {"--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  const auto json = run.Json();
  EXPECT_EQ(json["discarded_rounds"], 0);
  EXPECT_EQ(json["control"]["b"], "off again");
  EXPECT_EQ(json["control"]["phases"]["step"]["same_arms"], true);
  ASSERT_EQ(json["comparisons"].size(), 2u);
  const auto& ffn = json["comparisons"][0]["phases"]["ffn"];
  EXPECT_EQ(ffn["tiers_a"], "cpu_w8a16_exact");
  EXPECT_EQ(ffn["tiers_b"], "cpu_w8a16_blockfold");
  EXPECT_EQ(ffn["same_arms"], false);
  EXPECT_LE(ffn["change"]["low"], ffn["change"]["high"]);
  EXPECT_EQ(json["comparisons"][0]["phases"]["ssm"]["same_arms"], true);
}

TEST(AbCommand, OnANodeLeversGoBack) {
  const test::SmallNode node;
  const AppRun run = Ab({"--target", node.address(), "ab", "--model", "small", "--batch", "2",
                         "--rounds", "6", "--settle", "0"},
                        {});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("ffn against off"));
  EXPECT_THAT(run.out, HasSubstr("cpu_w8a16_exact -> cpu_w8a16_blockfold"));
  EXPECT_THAT(run.out, HasSubstr("the same arms ran: A/A"));
  EXPECT_EQ(node.Lever("m16_tc"), "off");
}

TEST(AbCommand, WhatCannotBeIsTold) {
  EXPECT_EQ(RunFulcrum({"ab"}).exit, 2);
  EXPECT_EQ(RunFulcrum({"ab", "--sets", "only:m16_tc=off"}).exit, 2);
  EXPECT_EQ(Ab({"ab", "--rounds", "5"}, {}).exit, 2);
  EXPECT_EQ(Ab({"ab", "--in-process", "--model", "small", "--sets", "x:none=1"}, {}).exit, 1);
}

}  // namespace
}  // namespace fulcrum::cli

// fulcrum step, in process and against a real node.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "service/server.h"
#include "tests/client/support/run_app.h"
#include "tests/client/support/small_node.h"

namespace fulcrum::cli {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kInProcess = {
    "step",    "--in-process", "--backend", "cpu", "--threads", "1",
    "--model", "small",        "--steps",   "3",   "--json"};

std::vector<std::string> With(std::vector<std::string> arguments, std::vector<std::string> more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(StepCommand, InProcessEveryPhaseIsTimed) {
  const AppRun run = RunFulcrum(With(kInProcess, {"--batch", "5"}));
  ASSERT_EQ(run.exit, 0) << run.err;
  const auto json = run.Json();
  EXPECT_EQ(json["steps"], 3);
  EXPECT_EQ(json["rows"], 5);
  EXPECT_EQ(json["layers"], 2);
  EXPECT_EQ(json["calls"], 9);
  EXPECT_EQ(json["left_out"].size(), 2u);
  double sum = 0;
  for (const char* phase : {"ssm", "ffn", "attention", "moe", "lm_head"}) {
    sum += json["phases"][phase]["seconds"]["p50"].get<double>();
    EXPECT_GT(json["phases"][phase]["kernel_seconds"]["p50"], 0) << phase;
  }
  EXPECT_GT(sum, 0);
  EXPECT_EQ(json["phases"]["step"]["calls"], 9);
  EXPECT_EQ(json["phases"]["attention"]["calls"], 2);
  EXPECT_EQ(json["phases"]["ffn"]["tiers"], "cpu_w8a16_exact");
}

TEST(StepCommand, LeversLayersAndTheHeadAreChosen) {
  const AppRun run = RunFulcrum(
      With(kInProcess, {"--layers", "1", "--no-lm-head", "--levers", "m16_tc=ffn_gate_up"}));
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(run.Json()["calls"], 4);
  EXPECT_EQ(run.Json()["phases"]["ffn"]["tiers"], "cpu_w8a16_blockfold + cpu_w8a16_exact");
  EXPECT_EQ(run.Json()["phases"]["ssm"]["tiers"], "cpu_w8a16_exact");
}

TEST(StepCommand, OnANodeLeversAreTurnedAndTurnedBack) {
  const test::SmallNode node;
  const std::vector<std::string> step = {"--target", node.address(), "step",      "--model",
                                         "small",    "--steps",      "2",         "--batch",
                                         "2",        "--levers",     "m16_tc=all"};
  const AppRun run = RunFulcrum(step);
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("2 layers, 9 calls a step"));
  EXPECT_THAT(run.out, HasSubstr("cpu_w8a16_blockfold"));
  const AppRun json = RunFulcrum(With({"--json"}, step));
  EXPECT_EQ(json.Json()["lever_epochs"].size(), 1u);
  EXPECT_EQ(node.Lever("m16_tc"), "off");
}

TEST(StepCommand, AStopIsToldAndLeversGoBack) {
  const test::SmallNode node;
  std::thread interrupts([&] {
    while (node.Lever("m16_tc") == "off") std::this_thread::yield();
    std::raise(SIGTERM);  // the command notes it while levers are turned
  });
  const AppRun run = RunFulcrum({"--target", node.address(), "step", "--model", "small", "--steps",
                                 "1000000", "--batch", "2", "--levers", "m16_tc=all"});
  interrupts.join();
  EXPECT_EQ(run.exit, 1);
  EXPECT_THAT(run.err, testing::ContainsRegex("asked to stop after [0-9]+ of 1000000 steps"));
  EXPECT_EQ(node.Lever("m16_tc"), "off");
}

TEST(StepCommand, WhatCannotBeIsTold) {
  EXPECT_EQ(RunFulcrum({"step", "--batch", "33"}).exit, 2);
  EXPECT_EQ(RunFulcrum({"step", "--steps", "0"}).exit, 2);
  EXPECT_EQ(RunFulcrum({"step", "--levers", "nonsense"}).exit, 2);
  EXPECT_EQ(RunFulcrum({"step", "--in-process", "--model", "none"}).exit, 1);
  const AppRun lever = RunFulcrum(With(kInProcess, {"--levers", "no_such=1"}));
  EXPECT_EQ(lever.exit, 1);
  EXPECT_THAT(lever.err, HasSubstr("no_such"));
  const test::SmallNode node;
  const AppRun model = RunFulcrum({"--target", node.address(), "step", "--model", "absent"});
  EXPECT_EQ(model.exit, 1);
  EXPECT_THAT(model.err, HasSubstr("models/absent/shards"));
}

}  // namespace
}  // namespace fulcrum::cli

// A journal made shorter: what a node recovers from it stays, also when the process is killed
// meanwhile.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_compaction.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>
#include <string>

#include "scheduler/lever_journal.h"
#include "scheduler/lever_record.h"
#include "scheduler/lever_recovery.h"
#include "tests/support/weight_files.h"

namespace fulcrum {
namespace {

// Sets, starts and canaries with each of their ends; the last canary may still run.
std::vector<LeverStep> RandomSteps(std::mt19937& random, size_t count) {
  static constexpr const char* kLevers[] = {"m16_tc", "max_batch_rows", "q2_imma"};
  static constexpr const char* kValues[][3] = {
      {"off", "attn_o:m16", "all:one_pass"}, {"4", "8", "32"}, {"off", "on", "on"}};
  std::vector<LeverStep> steps;
  LeverEvent canary;
  for (uint64_t epoch = 2; steps.size() < count; epoch += 1 + random() % 2) {
    LeverEvent event{.epoch = epoch, .time = absl::FromUnixMicros(1700000000000000)};
    const size_t lever = random() % 3;
    event.lever = kLevers[lever];
    event.from = kValues[lever][random() % 3];
    event.to = kValues[lever][random() % 3];
    event.cause = random() % 4 == 0 ? LeverCause::kStart : LeverCause::kSet;
    if (canary.canary != 0 && random() % 3 == 0) {
      event = canary;
      event.epoch = epoch;
      event.cause = random() % 2 == 0 ? LeverCause::kPromote : LeverCause::kRevert;
      if (event.cause == LeverCause::kRevert) std::swap(event.from, event.to);
      canary.canary = 0;
    } else if (canary.canary == 0 && random() % 5 == 0) {
      event.cause = LeverCause::kCanaryStart;
      event.canary = epoch;
      canary = event;
    }
    steps.push_back({event});
  }
  return steps;
}

void ExpectSameRecovery(const std::vector<LeverStep>& a, const std::vector<LeverStep>& b) {
  const LeverRecovery x = RecoverLevers({}, a, absl::UnixEpoch());
  const LeverRecovery y = RecoverLevers({}, b, absl::UnixEpoch());
  EXPECT_EQ(x.levers.levers, y.levers.levers);
  EXPECT_EQ(x.levers.source, y.levers.source);
  EXPECT_EQ(x.levers.epoch, y.levers.epoch);
  EXPECT_EQ(x.steps, y.steps);
}

TEST(LeverCompaction, WhatIsRecoveredStays) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto steps = RandomSteps(random, random() % 60);
    for (const size_t recent : {0, 1, 5}) {
      const auto kept = CompactSteps(steps, recent);
      EXPECT_LE(kept.size(), recent + 7);  // two for each lever, one for the canary
      ExpectSameRecovery(steps, kept);
    }
  }
}

class CompactedJournal : public ::testing::Test {
 protected:
  void Write(const std::vector<LeverStep>& steps) const {
    std::ofstream file(path_, std::ios::binary | std::ios::trunc);
    RecordChain chain;
    for (const LeverStep& step : steps) file << EncodeStep(step, chain);
  }
  const test::TempDir dir_;
  const std::string path_ = dir_.At("levers.journal");
};

TEST_F(CompactedJournal, ALongOneIsShorterOnceOpenedAndStillGrows) {
  std::mt19937 random(2);
  const auto steps = RandomSteps(random, kLongJournal + 1);
  Write(steps);
  {
    const auto opened = LeverJournal::Open(path_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_LE(opened->steps.size(), kRecentSteps + 7);
    EXPECT_EQ(opened->steps, CompactSteps(steps, kRecentSteps));
    ExpectSameRecovery(steps, opened->steps);
    EXPECT_FALSE(LeverJournal::Open(path_).ok()) << "the new file is held as the old one was";
    LeverStep next = steps.back();
    next[0].epoch += 5;
    ASSERT_TRUE(opened->journal->Append(next).ok());
  }
  const auto again = LeverJournal::Open(path_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->steps.back()[0].epoch, steps.back()[0].epoch + 5);
}

TEST_F(CompactedJournal, KilledAtAnyMomentItRecoversTheSame) {
  std::mt19937 random(3);
  const auto steps = RandomSteps(random, kLongJournal + 50);
  for (int round = 0; round < 40; ++round) {
    Write(steps);
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      (void)!::write(ends[1], "x", 1);
      ::_exit(LeverJournal::Open(path_).ok() ? 0 : 1);
    }
    char begun = 0;
    ASSERT_EQ(::read(ends[0], &begun, 1), 1);
    for (volatile unsigned left = random() % 60'000'000; left > 0;) left = left - 1;
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    ::close(ends[0]);
    ::close(ends[1]);
    const auto opened = LeverJournal::Open(path_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    ExpectSameRecovery(steps, opened->steps);
  }
}

}  // namespace
}  // namespace fulcrum

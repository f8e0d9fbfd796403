// What a start makes of configuration and journal together.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace fulcrum {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(5000);

LeverStep Change(uint64_t epoch, LeverCause cause, std::string lever, std::string from,
                 std::string to, uint64_t canary = 0) {
  return {{.epoch = epoch,
           .time = absl::FromUnixSeconds(100),
           .lever = std::move(lever),
           .from = std::move(from),
           .to = std::move(to),
           .actor = "someone",
           .cause = cause,
           .canary = canary}};
}
LeverSource SourceOf(const LeverRecovery& r, Lever lever) {
  return r.levers.source[static_cast<size_t>(lever)];
}

TEST(LeverRecovery, WithoutAJournalItIsTheConfiguration) {
  const LeverRecovery fresh = RecoverLevers({}, {}, kNow);
  EXPECT_EQ(fresh.levers.epoch, 1u);
  EXPECT_TRUE(fresh.steps.empty());
}

TEST(LeverRecovery, TheJournalBeatsEverythingThatIsNotLatched) {
  LeverSnapshot configured;
  ASSERT_TRUE(configured.levers.Set("max_batch_rows", "16").ok());
  configured.source[static_cast<size_t>(Lever::kMaxBatchRows)] = LeverSource::kEnvironment;
  ASSERT_TRUE(configured.levers.Set("audit_rate", "0.5").ok());
  configured.source[static_cast<size_t>(Lever::kAuditRate)] = LeverSource::kConfig;
  configured.latched[static_cast<size_t>(Lever::kAuditRate)] = true;
  const LeverRecovery r =
      RecoverLevers(configured,
                    {Change(2, LeverCause::kSet, "max_batch_rows", "32", "4"),
                     Change(3, LeverCause::kSet, "audit_rate", "0.01", "0"),
                     Change(4, LeverCause::kPromote, "m16_tc", "off", "all:one_pass", 3),
                     Change(5, LeverCause::kSet, "max_batch_rows", "4", "8")},
                    kNow);
  EXPECT_EQ(r.levers.levers.Print(Lever::kMaxBatchRows), "8");
  EXPECT_EQ(SourceOf(r, Lever::kMaxBatchRows), LeverSource::kJournal);
  EXPECT_EQ(r.levers.levers.Print(Lever::kM16Tc), "all:one_pass");
  EXPECT_EQ(r.levers.levers.Print(Lever::kAuditRate), "0.5");
  EXPECT_EQ(SourceOf(r, Lever::kAuditRate), LeverSource::kConfig);
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_THAT(r.warnings[0], HasSubstr("audit_rate is latched"));
  // The latched value is another than ran last: the start is a step of its own.
  ASSERT_EQ(r.steps.size(), 1u);
  EXPECT_EQ(r.steps[0][0].cause, LeverCause::kStart);
  EXPECT_EQ(r.steps[0][0].from, "0");
  EXPECT_EQ(r.steps[0][0].to, "0.5");
  EXPECT_EQ(r.levers.epoch, 6u);
  EXPECT_EQ(r.history.size(), 5u);
}

TEST(LeverRecovery, AnEpochNamesOneSetOfValuesOverRestarts) {
  const std::vector<LeverStep> journal = {Change(2, LeverCause::kSet, "max_batch_rows", "32", "4")};
  const LeverRecovery same = RecoverLevers({}, journal, kNow);
  EXPECT_TRUE(same.steps.empty());
  EXPECT_EQ(same.levers.epoch, 2u);

  LeverSnapshot configured;
  ASSERT_TRUE(configured.levers.Set("coalesce_window_us", "50").ok());
  configured.source[static_cast<size_t>(Lever::kCoalesceWindow)] = LeverSource::kConfig;
  const LeverRecovery other = RecoverLevers(configured, journal, kNow);
  ASSERT_EQ(other.steps.size(), 1u);
  EXPECT_EQ(other.levers.epoch, 3u);
  // And once that is on record, the next start with it is the same again.
  std::vector<LeverStep> longer = journal;
  longer.push_back(other.steps[0]);
  EXPECT_TRUE(RecoverLevers(configured, longer, kNow).steps.empty());
  // Without it the lever goes back, which is a step too: a start keeps nothing but what was set.
  EXPECT_EQ(RecoverLevers({}, longer, kNow).steps.size(), 1u);
}

TEST(LeverRecovery, ACanaryThatRanComesBackOnTheControl) {
  const std::vector<LeverStep> journal = {
      Change(2, LeverCause::kSet, "max_batch_rows", "32", "4"),
      Change(4, LeverCause::kCanaryStart, "m16_tc", "off", "all:m16", 3)};
  const LeverRecovery r = RecoverLevers({}, journal, kNow);
  EXPECT_EQ(r.levers.levers.Print(Lever::kM16Tc), "off");
  EXPECT_EQ(SourceOf(r, Lever::kM16Tc), LeverSource::kBuiltIn);
  ASSERT_EQ(r.steps.size(), 1u);
  const LeverEvent& revert = r.steps[0][0];
  EXPECT_EQ(revert.cause, LeverCause::kRevert);
  EXPECT_EQ(revert.canary, 3u);
  EXPECT_EQ(revert.from, "all:m16");
  EXPECT_EQ(revert.to, "off");
  EXPECT_EQ(revert.epoch, 5u);
  EXPECT_EQ(revert.time, kNow);
  EXPECT_THAT(revert.evidence, HasSubstr("the node ended"));
  // The next start finds it ended.
  std::vector<LeverStep> longer = journal;
  longer.push_back(r.steps[0]);
  EXPECT_TRUE(RecoverLevers({}, longer, kNow).steps.empty());
}

TEST(LeverRecovery, WhatThisVersionDoesNotKnowIsSaidAndSkipped) {
  const LeverRecovery r = RecoverLevers({},
                                        {Change(2, LeverCause::kSet, "lever_of_tomorrow", "a", "b"),
                                         Change(3, LeverCause::kSet, "max_batch_rows", "32", "64")},
                                        kNow);
  EXPECT_EQ(r.levers.levers.Print(Lever::kMaxBatchRows), "32");
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_THAT(r.warnings[0], HasSubstr("max_batch_rows"));
  EXPECT_EQ(r.levers.epoch, 4u);  // 64 to 32 is a change that the start made
}

}  // namespace
}  // namespace fulcrum

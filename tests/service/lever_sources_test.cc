// Precedence of lever sources, latching, and the profile table.
// SPDX-License-Identifier: Apache-2.0
#include "service/lever_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "kernels/ladder/levers.h"
#include "scheduler/clock.h"
#include "tests/support/weight_files.h"

namespace fulcrum::service {
namespace {

using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

LeverSnapshot Built(const Config& config, const Environment& environment = {}) {
  absl::StatusOr<LeverSnapshot> snapshot = BuildLevers(config, "cpu", environment);
  EXPECT_TRUE(snapshot.ok()) << snapshot.status();
  return snapshot.ok() ? *snapshot : LeverSnapshot{};
}
LeverSource SourceOf(const LeverSnapshot& snapshot, Lever lever) {
  return snapshot.source[static_cast<size_t>(lever)];
}

TEST(LeverSources, EachSourceBeatsTheOnesBefore) {
  Config config;
  LeverSnapshot snapshot = Built(config);
  EXPECT_EQ(snapshot.levers, LeverSet());
  EXPECT_EQ(SourceOf(snapshot, Lever::kM16Tc), LeverSource::kBuiltIn);

  config.profile = "fast";
  snapshot = Built(config);
  EXPECT_EQ(snapshot.levers.Print(Lever::kM16Tc), "all:one_pass");
  EXPECT_EQ(SourceOf(snapshot, Lever::kM16Tc), LeverSource::kProfile);
  EXPECT_EQ(SourceOf(snapshot, Lever::kAuditRate), LeverSource::kBuiltIn);

  config.levers["m16_tc"] = "attn_o";
  snapshot = Built(config);
  EXPECT_EQ(snapshot.levers.Print(Lever::kM16Tc), "attn_o:one_pass");
  EXPECT_EQ(SourceOf(snapshot, Lever::kM16Tc), LeverSource::kConfig);

  snapshot = Built(config, {{"FULCRUM_LEVER_M16_TC", "off"}});
  EXPECT_EQ(snapshot.levers.Print(Lever::kM16Tc), "off");
  EXPECT_EQ(SourceOf(snapshot, Lever::kM16Tc), LeverSource::kEnvironment);

  snapshot = Built(config, {{"FULCRUM_ATTN_M16_TC", "1"}, {"PATH", "/bin"}});
  EXPECT_EQ(snapshot.levers.Print(Lever::kM16Tc), "attn_qkv:m16,attn_o:m16");
}

TEST(LeverSources, AFullDiskDoesNotKeepANodeDownWhoseCanaryWasInterrupted) {
  const test::TempDir dir;
  Config config;
  config.lever_journal = dir.At("levers.journal");
  const Clock clock;
  {
    const auto levers = StartLevers(config, "cpu", {});
    ASSERT_TRUE(levers.ok()) << levers.status();
    LeverStore store(clock, levers->start, {.log = levers->journal.get()});
    ASSERT_TRUE(store.StartCanary({.changes = {{"m16_tc", "all"}}, .share = 0.5}, 0, false).ok());
  }
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{std::filesystem::file_size(config.lever_journal) + 10, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  auto full = StartLevers(config, "cpu", {});
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->start.levers.Print(Lever::kM16Tc), "off");
  ASSERT_EQ(full->unwritten.size(), 1u);
  EXPECT_EQ(full->unwritten[0][0].cause, LeverCause::kRevert);
  EXPECT_FALSE(full->why_unwritten.ok());
  // With room again the record is written before a change, and the canary is over for later starts
  // too.
  {
    LeverStore store(clock, full->start,
                     {.log = full->journal.get(), .unwritten = full->unwritten});
    EXPECT_TRUE(store.Set({{"max_batch_rows", "8"}}, {}).ok());
  }
  full->journal.reset();
  const auto next = StartLevers(config, "cpu", {});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->start.epoch, full->start.epoch + 1);  // of the change alone
  ASSERT_EQ(next->history.size(), 3u);
  EXPECT_EQ(next->history[1], full->unwritten[0][0]);
}

TEST(LeverSources, LatchesHoldAgainstRpcAndJournalOnly) {
  Config config;
  config.latched_levers = {"m16_tc"};
  const LeverSnapshot snapshot =
      Built(config, {{"FULCRUM_LATCHED_LEVERS", " audit_rate, ,q2_imma"}});
  for (const LeverInfo& info : LeverTable()) {
    const bool expected = info.lever == Lever::kM16Tc || info.lever == Lever::kAuditRate ||
                          info.lever == Lever::kQ2Imma;
    EXPECT_EQ(snapshot.latched[static_cast<size_t>(info.lever)], expected) << info.name;
  }
  const Clock clock;
  LeverStore store(clock, snapshot);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      store.Set({{"m16_tc", "all"}}, {.source = LeverSource::kRpc}).status()));
  EXPECT_TRUE(store.Set({{"max_batch_rows", "8"}}, {.source = LeverSource::kRpc}).ok());
}

TEST(LeverSources, ErrorsNameTheSource) {
  Config config;
  config.levers["m16_tc"] = "everything";
  config.places["levers[m16_tc]"] = "node.txtpb:7:1";
  EXPECT_THAT(std::string(BuildLevers(config, "cpu", {}).status().message()),
              HasSubstr("node.txtpb:7:1: levers[m16_tc]: lever m16_tc"));
  EXPECT_THAT(std::string(BuildLevers({}, "cpu", {{"FULCRUM_LEVER_NONE", "1"}}).status().message()),
              HasSubstr("FULCRUM_LEVER_NONE"));
  EXPECT_THAT(
      std::string(BuildLevers({}, "cpu", {{"FULCRUM_LATCHED_LEVERS", "none"}}).status().message()),
      HasSubstr("FULCRUM_LATCHED_LEVERS: no lever 'none'"));
}

TEST(LeverSources, ProfileRowsParseAndAreDescribed) {
  for (const ProfileLever& row : ProfileTable()) {
    LeverSet levers;
    EXPECT_TRUE(levers.Set(row.lever, row.value).ok()) << row.lever;
    EXPECT_THAT(DescribeProfile(row.profile, row.backend), HasSubstr(std::string(row.value)));
  }
  EXPECT_EQ(DescribeProfile("exact", "cpu"), "");
  EXPECT_EQ(DescribeProfile("fast", "abacus"), "");
}

}  // namespace
}  // namespace fulcrum::service

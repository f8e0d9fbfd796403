// The journal's file: what was acknowledged is there after any end of the process, a cut last
// record is dropped, any other damage is told with its place.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "scheduler/lever_record.h"
#include "tests/support/weight_files.h"

namespace fulcrum {
namespace {

using ::testing::HasSubstr;

LeverStep Step(uint64_t epoch, std::string to = "attn_o:one_pass") {
  LeverEvent event{.epoch = epoch,
                   .time = absl::FromUnixMicros(1700000000123456),
                   .lever = "m16_tc",
                   .from = "off",
                   .to = std::move(to),
                   .source = LeverSource::kRpc,
                   .actor = "someone",
                   .reason = "a \"reason\"\nin two lines",
                   .cause = LeverCause::kPromote,
                   .canary = 7,
                   .evidence = "12 against 300 batches"};
  LeverEvent other = event;
  other.lever = "max_batch_rows";
  other.to = "8";
  return {event, other};
}

// Records as a file of them holds them, one after the other.
class Lines {
 public:
  std::string Next(const LeverStep& step) { return EncodeStep(step, chain_); }

 private:
  RecordChain chain_;
};

// A line as earlier versions wrote it.
std::string OldLine(const LeverStep& step) {
  RecordChain chain;  // of a first record both formats say the same, apart from the mark
  return EncodeStep(step, chain).substr(2);
}

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

class LeverJournalTest : public ::testing::Test {
 protected:
  LeverJournal::Opened Open() {
    auto opened = LeverJournal::Open(path_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : LeverJournal::Opened{};
  }
  const test::TempDir dir_;
  const std::string path_ = dir_.At("levers.journal");
};

TEST_F(LeverJournalTest, KeepsEveryFieldOfEveryStep) {
  {
    const auto opened = Open();
    EXPECT_TRUE(opened.steps.empty());
    for (uint64_t epoch : {2, 3, 9}) ASSERT_TRUE(opened.journal->Append(Step(epoch)).ok());
  }
  const auto again = Open();
  EXPECT_EQ(again.dropped_bytes, 0);
  ASSERT_EQ(again.steps.size(), 3u);
  EXPECT_EQ(again.steps[0], Step(2));
  EXPECT_EQ(again.steps[2], Step(9));
}

TEST_F(LeverJournalTest, ALineIsForPeopleToo) {
  Lines lines;
  const std::string line = lines.Next(Step(2));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_THAT(line, HasSubstr("\"actor\":\"someone\""));
  LeverStep rude = Step(2);
  rude[0].reason = rude[1].reason = "\xff\xfe";
  const std::string clean = Lines().Next(rude);
  RecordChain chain;
  EXPECT_TRUE(DecodeStep(clean.substr(0, clean.size() - 1), chain).ok());
}

TEST_F(LeverJournalTest, ARecordCutShortAnywhereIsDroppedAndNothingElse) {
  Lines lines, others;
  const std::string first = lines.Next(Step(2)), second = lines.Next(Step(3));
  std::string after = others.Next(Step(2));
  after += others.Next(Step(4));
  for (size_t kept = 0; kept + 1 < second.size(); ++kept) {
    Write(path_, first + second.substr(0, kept));
    {
      const auto opened = Open();
      ASSERT_EQ(opened.steps.size(), 1u) << kept;
      EXPECT_EQ(opened.dropped_bytes, static_cast<int64_t>(kept));
      ASSERT_TRUE(opened.journal->Append(Step(4)).ok());
    }
    EXPECT_EQ(Contents(path_), after);
  }
  // As after a crash of the machine: the length is there, the bytes are not.
  Write(path_, first + std::string(second.size() - 1, '\0') + "\n");
  EXPECT_EQ(Open().steps.size(), 1u);
  // Its first page only, or all but it.
  Write(path_, first + second.substr(0, 40) + std::string(second.size() - 41, '\0') + "\n");
  EXPECT_EQ(Open().steps.size(), 1u);
  Write(path_, first + std::string(40, '\0') + second.substr(40));
  EXPECT_EQ(Open().steps.size(), 1u);
}

TEST_F(LeverJournalTest, ARecordThatLacksItsNewlineAloneIsWhole) {
  Lines lines;
  const std::string first = lines.Next(Step(2)), second = lines.Next(Step(3));
  Write(path_, first + second.substr(0, second.size() - 1));
  EXPECT_TRUE(LeverJournal::Check(path_).ok());
  EXPECT_EQ(Contents(path_), first + second.substr(0, second.size() - 1)) << "it was changed";
  {
    const auto opened = Open();
    EXPECT_EQ(opened.steps.size(), 2u);
    EXPECT_EQ(opened.dropped_bytes, 0);
    ASSERT_TRUE(opened.journal->Append(Step(4)).ok());
  }
  EXPECT_EQ(Contents(path_), first + second + lines.Next(Step(4)));
}

TEST_F(LeverJournalTest, WhatDoesNotBeginAsARecordIsNotDropped) {
  Lines lines;
  const std::string first = lines.Next(Step(2));
  for (const std::string& other :
       {std::string("{\"important\": \"somebody else's, without a newline at the end\"}"),
        std::string("hello"), std::string("2 0123456x"), std::string("01234567 12x"),
        std::string(size_t{5} << 20, '\0')}) {
    for (const std::string& before : {std::string(), first}) {
      Write(path_, before + other);
      EXPECT_EQ(LeverJournal::Open(path_).status().code(), absl::StatusCode::kDataLoss)
          << other.substr(0, 20);
      EXPECT_EQ(LeverJournal::Check(path_).code(), absl::StatusCode::kDataLoss);
      EXPECT_EQ(Contents(path_), before + other) << "it was changed";
    }
  }
}

TEST_F(LeverJournalTest, AFileThatWasCutOrWrittenToTakesNoStep) {
  const auto opened = Open();
  ASSERT_TRUE(opened.journal->Append(Step(2)).ok());
  ASSERT_TRUE(opened.journal->Append(Step(3)).ok());
  const std::string whole = Contents(path_);
  for (const std::string& other : {std::string(), whole.substr(0, 50), whole + "x"}) {
    Write(path_, other);
    const absl::Status status = opened.journal->Append(Step(4));
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cut it or wrote to it"));
    EXPECT_EQ(Contents(path_), other);
  }
  Write(path_, whole);
  EXPECT_TRUE(opened.journal->Append(Step(4)).ok());
}

TEST_F(LeverJournalTest, AWholeLastLineWithAnotherChecksumIsDamage) {
  Lines lines;
  const std::string first = lines.Next(Step(2)), damaged = lines.Next(Step(3));
  for (size_t at : {size_t{20}, damaged.size() - 10}) {
    std::string line = damaged;
    line[at] = static_cast<char>(line[at] ^ 1);
    Write(path_, first + line);
    const absl::Status status = LeverJournal::Open(path_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ": line 2 (byte"));
    EXPECT_EQ(Contents(path_), first + line) << "it was changed";
  }
}

TEST_F(LeverJournalTest, AFileThatIsNoLongerThereTakesNoStep) {
  const auto opened = Open();
  ASSERT_TRUE(opened.journal->Append(Step(2)).ok());
  ASSERT_EQ(::rename(path_.c_str(), dir_.At("moved").c_str()), 0);
  const absl::Status gone = opened.journal->Append(Step(3));
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr("removed, renamed or replaced"));
  Write(path_, "");  // another file in its place
  EXPECT_TRUE(absl::IsUnavailable(opened.journal->Append(Step(3))));
  ASSERT_EQ(::rename(dir_.At("moved").c_str(), path_.c_str()), 0);
  EXPECT_TRUE(opened.journal->Append(Step(3)).ok());
}

TEST_F(LeverJournalTest, DamageWithRecordsBehindItIsToldWithItsPlace) {
  Lines lines;
  const std::string first = lines.Next(Step(2)), second = lines.Next(Step(3));
  const std::string third = lines.Next(Step(4));
  for (size_t at = 0; at < second.size(); ++at) {
    std::string damaged = second;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    Write(path_, first + damaged + third);
    const auto opened = LeverJournal::Open(path_);
    // Hex digits in upper case say the same.
    if (opened.ok() && at >= 2 && at < 10) continue;
    ASSERT_EQ(opened.status().code(), absl::StatusCode::kDataLoss) << at;
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(path_ + ": line 2 (byte"));
    EXPECT_EQ(Contents(path_), first + damaged + third) << "it was changed";
  }
  Write(path_, third + first + second);  // epochs that fall
  EXPECT_EQ(LeverJournal::Open(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(LeverJournalTest, ALineThatWasTakenOutMovedOrPutInIsDamage) {
  Lines lines;
  std::vector<std::string> all;
  for (uint64_t epoch : {2, 3, 4, 5}) all.push_back(lines.Next(Step(epoch)));
  const auto expect_damage = [&](const std::vector<std::string>& kept, const std::string& line) {
    std::string text;
    for (const std::string& one : kept) text += one;
    Write(path_, text);
    const absl::Status status = LeverJournal::Open(path_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ": line " + line + " (byte"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("taken out"));
    EXPECT_EQ(Contents(path_), text) << "it was changed";
  };
  expect_damage({all[1], all[2], all[3]}, "1");
  expect_damage({all[0], all[2], all[3]}, "2");
  expect_damage({all[0], all[1], all[3]}, "3");  // the last one shows it too
  expect_damage({all[0], Lines().Next(Step(3)), all[2]}, "2");
  Write(path_, all[0] + all[1] + all[2] + all[3]);
  EXPECT_EQ(Open().steps.size(), 4u);
}

TEST_F(LeverJournalTest, AnOldJournalIsReadAndContinuedInAChain) {
  const std::string old = OldLine(Step(2)) + OldLine(Step(3)) + OldLine(Step(4));
  Write(path_, old);
  {
    const auto opened = Open();
    ASSERT_EQ(opened.steps.size(), 3u);
    EXPECT_EQ(opened.steps[1], Step(3));
    ASSERT_TRUE(opened.journal->Append(Step(5)).ok());
    ASSERT_TRUE(opened.journal->Append(Step(6)).ok());
  }
  const std::string text = Contents(path_);
  ASSERT_TRUE(text.starts_with(old));
  EXPECT_EQ(text.substr(old.size(), 2), "2 ");
  EXPECT_EQ(Open().steps.size(), 5u);
  // What was chained covers the old lines before it: none of them can go any more either.
  const std::string chained = text.substr(old.size());
  Write(path_, OldLine(Step(2)) + OldLine(Step(4)) + chained);
  EXPECT_THAT(std::string(LeverJournal::Open(path_).status().message()), HasSubstr(": line 3 "));
  Write(path_, chained);
  EXPECT_THAT(std::string(LeverJournal::Open(path_).status().message()), HasSubstr(": line 1 "));
  // And an old line cannot follow one of the chain.
  Write(path_, text + OldLine(Step(7)));
  EXPECT_THAT(std::string(LeverJournal::Open(path_).status().message()), HasSubstr(": line 6 "));
}

TEST_F(LeverJournalTest, OneProcessHoldsItAndOddPathsAreRefused) {
  const auto held = Open();
  const auto second = LeverJournal::Open(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another process holds it"));
  EXPECT_EQ(LeverJournal::Open(dir_.At("none/levers")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(LeverJournal::Open("/dev/null").ok());
}

TEST_F(LeverJournalTest, AFullDiskRefusesTheStepAndLeavesTheFileWhole) {
  const auto opened = Open();
  ASSERT_TRUE(opened.journal->Append(Step(2)).ok());
  const std::string before = Contents(path_);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{before.size() + 10, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const absl::Status refused = opened.journal->Append(Step(3));
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(Contents(path_), before);
  EXPECT_TRUE(opened.journal->Append(Step(3)).ok());
}

TEST_F(LeverJournalTest, WhatWasAcknowledgedSurvivesKillsAtRandomMoments) {
  std::mt19937 random(5);
  uint64_t last = 1;  // acknowledged so far
  for (int round = 0; round < 30; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto opened = LeverJournal::Open(path_);
      if (!opened.ok()) ::_exit(1);
      for (uint64_t epoch = last + 2;; ++epoch) {
        if (!opened->journal->Append(Step(epoch, std::string(epoch % 700, 'x'))).ok()) ::_exit(1);
        if (::write(ends[1], &epoch, sizeof(epoch)) != sizeof(epoch)) ::_exit(1);
      }
    }
    ::close(ends[1]);
    // It dies in the middle of some record after this many.
    for (unsigned left = 1 + random() % 40; left > 0; --left) {
      ASSERT_EQ(::read(ends[0], &last, sizeof(last)), static_cast<ssize_t>(sizeof(last)));
    }
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    for (uint64_t epoch; ::read(ends[0], &epoch, sizeof(epoch)) == sizeof(epoch);) last = epoch;
    ::close(ends[0]);
    const auto opened = Open();
    ASSERT_FALSE(opened.steps.empty());
    // At most the one record that was in hand is there beyond the acknowledged.
    EXPECT_GE(opened.steps.back().front().epoch, last);
    EXPECT_LE(opened.steps.back().front().epoch, last + 1);
    last = opened.steps.back().front().epoch;
  }
}

}  // namespace
}  // namespace fulcrum

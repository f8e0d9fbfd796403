// The checkers' thread: order, what a flush waits for, what a stop leaves, chores between jobs.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/checker_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "tests/support/event.h"

namespace fulcrum {
namespace {

struct Job {
  int number = 0;
  std::shared_ptr<int> held = {};
};

TEST(CheckerThread, JobsRunInOrderAndAFlushWaitsForAll) {
  std::vector<int> ran;  // the thread's own until the flush
  CheckerThread<Job> thread("checker", [&](const Job& job) { ran.push_back(job.number); });
  std::vector<int> expected;
  for (int i = 0; i < 100; ++i) {
    thread.Add({.number = i});
    expected.push_back(i);
  }
  thread.Flush();
  EXPECT_EQ(ran, expected);
  EXPECT_EQ(thread.pending(), 0u);
}

TEST(CheckerThread, WhatAJobHoldsIsLetGoBeforeAFlushEnds) {
  auto held = std::make_shared<int>(1);
  CheckerThread<Job> thread("checker", [](const Job&) {});
  for (int i = 0; i < 100; ++i) {
    thread.Add({.held = held});
    thread.Flush();
    ASSERT_EQ(held.use_count(), 1) << i;
  }
}

TEST(CheckerThread, AJobThatThrowsIsToldAndTheNextRuns) {
  int ran = 0;
  std::vector<absl::Status> told;
  CheckerThread<Job> thread(
      "checker",
      [&](const Job& job) {
        ++ran;
        if (job.number == 1) throw std::bad_alloc();
        if (job.number == 2) throw std::runtime_error("a file's");
      },
      {}, [&](const absl::Status& what) { told.push_back(what); });
  auto held = std::make_shared<int>(1);
  for (int i = 0; i < 4; ++i) thread.Add({.number = i, .held = held});
  thread.Flush();
  EXPECT_EQ(ran, 4);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_TRUE(absl::IsResourceExhausted(told[0])) << told[0];
  EXPECT_TRUE(absl::IsInternal(told[1])) << told[1];
  EXPECT_EQ(held.use_count(), 1);
}

TEST(CheckerThread, AStopEndsBehindTheJobThatRunsAndReturnsTheOthers) {
  test::Event begun, go_on;
  int ran = 0;
  CheckerThread<Job> thread("checker", [&](const Job&) {
    ++ran;
    begun.Notify();
    go_on.WaitForNotification();
  });
  for (int i = 0; i < 4; ++i) thread.Add({.number = i});
  begun.WaitForNotification();
  EXPECT_EQ(thread.pending(), 3u);
  std::deque<Job> left;
  std::thread stops([&] { left = thread.Stop(); });
  go_on.Notify();
  stops.join();
  // The thread may have gone on to more jobs before it saw the stop, never past one in the middle.
  EXPECT_GE(ran, 1);
  EXPECT_EQ(static_cast<size_t>(ran) + left.size(), 4u);
  for (size_t i = 0; i < left.size(); ++i) EXPECT_EQ(left[i].number, ran + static_cast<int>(i));
  EXPECT_TRUE(thread.Stop().empty());  // again does nothing
}

TEST(CheckerThread, ChoresComeWithoutJobsAndAlsoAmongThem) {
  std::atomic<int> chores{0};
  CheckerThread<Job> thread("checker", [](const Job&) {},
                            {.every = absl::Microseconds(100), .run = [&] { ++chores; }});
  while (chores < 3) std::this_thread::yield();
  const int before = chores;
  while (chores < before + 3) thread.Add({});  // never idle
  thread.Flush();
}

}  // namespace
}  // namespace fulcrum

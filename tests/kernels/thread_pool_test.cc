// The pool of one launch: every item once, and what a body throws reaches the caller, whichever
// thread ran it.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace fulcrum::cpu {
namespace {

TEST(ThreadPool, RunsEveryItemOnce) {
  ThreadPool pool(3);
  for (int items : {0, 1, 2, 100}) {
    std::vector<std::atomic<int>> ran(static_cast<size_t>(items));
    pool.Run(items, [&](int64_t item, int) { ++ran[static_cast<size_t>(item)]; });
    for (const auto& count : ran) EXPECT_EQ(count, 1);
  }
}

TEST(ThreadPool, WhatABodyThrowsIsTheCallersAndThePoolGoesOn) {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int64_t bad : {0, 1, 63}) {
      std::atomic<int> ran{0};
      try {
        pool.Run(64, [&](int64_t item, int) {
          ++ran;
          if (item == bad) throw std::runtime_error(std::to_string(item));
        });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::runtime_error& e) {
        EXPECT_EQ(e.what(), std::to_string(bad));
      }
      if (threads > 1) {
        EXPECT_EQ(ran, 64) << "the others of the launch are not cut short";
      }
    }
    std::atomic<int> ran{0};
    pool.Run(64, [&](int64_t, int) { ++ran; });
    EXPECT_EQ(ran, 64);
  }
}

}  // namespace
}  // namespace fulcrum::cpu

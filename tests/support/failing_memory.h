// Memory that runs out for one thread, at the allocation that a test chooses: what a step does that
// may fail at each of its allocations can be tried at each of them. failing_memory.cc puts it in
// place of the program's operator new.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::test {

// In this scope the calling thread's `nth` allocation from now on (the first is 0) throws
// std::bad_alloc; those before and behind it are had.
class FailingMemory {
 public:
  explicit FailingMemory(int64_t nth);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  // Whether there were so many, so that one failed.
  static bool Failed();

  // Allocations that failed so, of all threads.
  static int64_t Failures();

  // The same without a scope, for callbacks on threads of others: arms, and disarms.
  static void Arm(int64_t nth);
  static void Disarm();
};

}  // namespace fulcrum::test

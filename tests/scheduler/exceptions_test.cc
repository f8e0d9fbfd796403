// What exceptions become, and how often a loop may throw.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/exceptions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <set>
#include <stdexcept>
#include <string>

namespace fulcrum {
namespace {

using ::testing::HasSubstr;

TEST(Exceptions, BecomeWhatACallerCanActOn) {
  EXPECT_TRUE(Caught([] {}).ok());
  const absl::Status memory = Caught([] { throw std::bad_alloc(); });
  EXPECT_TRUE(absl::IsResourceExhausted(memory)) << memory;
  EXPECT_EQ(memory, StatusForNoMemory());
  const absl::Status array = Caught([] { throw std::bad_array_new_length(); });
  EXPECT_TRUE(absl::IsResourceExhausted(array)) << array;
  const absl::Status other = Caught([] { throw std::runtime_error("no such disc"); });
  EXPECT_TRUE(absl::IsInternal(other)) << other;
  EXPECT_THAT(std::string(other.message()), HasSubstr("no such disc"));
  EXPECT_TRUE(absl::IsInternal(Caught([] { throw 7; })));
}

TEST(Exceptions, EveryThrowerHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (Thrower thrower : kAllThrowers) names.insert(Name(thrower));
  EXPECT_EQ(names.size(), kAllThrowers.size());
}

TEST(Exceptions, ALoopThatThrewBeginsAgain) {
  int begun = 0, told = 0;
  EXPECT_TRUE(KeepRunning(
      [&] {
        if (++begun < 4) throw std::bad_alloc();
      },
      [&](const absl::Status& what) {
        EXPECT_TRUE(absl::IsResourceExhausted(what));
        ++told;
        throw std::runtime_error("even so");
      }));
  EXPECT_EQ(begun, 4);
  EXPECT_EQ(told, 3);
}

TEST(Exceptions, ALoopThatThrowsAgainAndAgainIsGivenUp) {
  int begun = 0;
  EXPECT_FALSE(KeepRunning(
      [&] {
        ++begun;
        throw std::bad_alloc();
      },
      [](const absl::Status&) {}));
  EXPECT_EQ(begun, 100);
}

}  // namespace
}  // namespace fulcrum

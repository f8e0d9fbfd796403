// Text of others on the command line: what is escaped and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fulcrum::cli {
namespace {

TEST(Text, NothingBeginsALineOrSteersATerminal) {
  EXPECT_EQ(OneLine("plain: \"a\\b\" Grün 漢 \U0001F600"), "plain: \"a\\b\" Grün 漢 \U0001F600");
  EXPECT_EQ(OneLine("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(OneLine("\x1b[31m\x7f"), "\\x1b[31m\\x7f");
  EXPECT_EQ(OneLine("\u0085\u2028\u202e"), "\\xc2\\x85\\xe2\\x80\\xa8\\xe2\\x80\\xae");
  EXPECT_EQ(OneLine(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(OneLine("a\xff\xc3"), "a\\xff\\xc3");
}

TEST(Text, WhatIsNotUtf8IsRefusedByTheNameOfItsOption) {
  EXPECT_TRUE(CheckUtf8("--reason", "Grün \U0001F600").ok());
  for (const char* bad :
       {"\xff", "a\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80", "\x80"}) {
    const absl::Status status = CheckUtf8("--reason", bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--reason: expected UTF-8"));
  }
}

}  // namespace
}  // namespace fulcrum::cli

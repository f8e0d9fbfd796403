// Log lines stay one line of bounded length, whatever a caller names a shard.
// SPDX-License-Identifier: Apache-2.0
#include "service/log.h"

#include <gtest/gtest.h>

#include <string>

namespace fulcrum::service {
namespace {

std::string Line(const std::string& value) {
  const std::string line =
      FormatLogLine(absl::UnixEpoch(), LogLevel::kInfo, "call", {{"shard", value}});
  return line.substr(line.find("shard="));
}

TEST(Log, PlainValuesStandAsTheyAre) {
  EXPECT_EQ(
      "time=1970-01-01T00:00:00.000000Z level=info event=call shard=models/m/shards/s",
      FormatLogLine(absl::UnixEpoch(), LogLevel::kInfo, "call", {{"shard", "models/m/shards/s"}}));
}

TEST(Log, ControlAndForeignBytesAreEscaped) {
  EXPECT_EQ("shard=\"a\\n\\x1b[31m \\\"b\\\" \\xc3\\xa9 \\x7f\"",
            Line("a\n\x1b[31m \"b\" \xc3\xa9 \x7f"));
}

TEST(Log, LongValuesAreCutAndSaySo) {
  const std::string line = Line(std::string(5 << 20, 'x'));
  EXPECT_LT(line.size(), 3000u);
  EXPECT_TRUE(line.ends_with("x... of 5242880 bytes\"")) << line.substr(line.size() - 40);
}

}  // namespace
}  // namespace fulcrum::service

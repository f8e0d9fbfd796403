// What a node says of events that are not calls: enough to act on, and not the same line for ever.
// SPDX-License-Identifier: Apache-2.0
#include "service/node_events.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace fulcrum::service {
namespace {

TEST(NodeEvents, AuditsThatCannotRunAreOneWarningAShard) {
  int ends[2];
  ASSERT_EQ(0, ::pipe(ends));
  {
    Metrics metrics(MetricsSetup{});
    NodeHealth health({});
    const Logger log(LogLevel::kInfo, ends[1]);
    NodeEvents events({}, metrics, health, log, {});
    for (int i = 0; i < 100; ++i) {
      events.OnAuditError("models/m/shards/a", absl::DataLossError("the file changed"));
      events.OnAuditError("models/m/shards/b", absl::DataLossError("the file is gone"));
    }
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  ::close(ends[0]);
  EXPECT_EQ(2, std::count(text.begin(), text.end(), '\n')) << text;
  EXPECT_NE(std::string::npos, text.find("level=warn event=\"audit could not run\" "
                                         "shard=models/m/shards/a error=\"DATA_LOSS: the file "
                                         "changed\""))
      << text;
}

}  // namespace
}  // namespace fulcrum::service

// fulcrum ladder on a node: the M that are asked about.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/client/support/run_app.h"
#include "tests/client/support/small_node.h"

namespace fulcrum::cli {
namespace {

using ::testing::ElementsAre;

std::vector<int> RowsOf(const std::vector<std::string>& more) {
  const test::SmallNode node;
  std::vector<std::string> arguments = {"--target", node.address(), "--json",
                                        "ladder",   "--shard",      "models/small/shards/lm_head"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const AppRun run = RunFulcrum(arguments);
  EXPECT_EQ(run.exit, 0) << run.err;
  const nlohmann::json json = run.Json();
  std::vector<int> rows;
  for (const auto& choice : json["choices"]) rows.push_back(choice["rows"]);
  return rows;
}

TEST(Ladder, PrefillReachesTheNodesLimit) {
  EXPECT_THAT(RowsOf({"--step", "prefill"}),
              ElementsAre(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048));
  EXPECT_EQ(RowsOf({}).size(), 32u);
}

TEST(Ladder, OtherRowsAreAskedFor) {
  EXPECT_THAT(RowsOf({"--rows", "3,31"}), ElementsAre(3, 31));
  EXPECT_THAT(RowsOf({"--rows", "33,700", "--step", "prefill"}), ElementsAre(33, 700));
  for (const char* wrong : {"0", "1,", "a", "-3"}) {
    EXPECT_EQ(RunFulcrum({"ladder", "--shard", "s", std::string("--rows=") + wrong}).exit, 2)
        << wrong;
  }
}

}  // namespace
}  // namespace fulcrum::cli

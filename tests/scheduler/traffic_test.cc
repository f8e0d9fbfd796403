// What the node remembers of the last minute, also where callers make up names.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/canary_split.h"
#include "tests/support/fake_backend.h"
#include "tests/support/test_call.h"

namespace fulcrum {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

void Add(TrafficTable& table, const std::string& name, int64_t rows, absl::Time at = kStart) {
  table.Add(
      KeyHash(name), [&] { return name; }, rows, at);
}
SeenTraffic Look(const TrafficTable& table, absl::Time now = kStart) {
  SeenTraffic seen;
  table.AddTo(now, seen);
  Merge(seen.units);
  return seen;
}
int64_t RowsOf(const SeenTraffic& seen, const std::string& name) {
  const auto unit = std::find_if(seen.units.begin(), seen.units.end(),
                                 [&](const UnitRows& u) { return u.key == KeyHash(name); });
  return unit == seen.units.end() ? 0 : unit->rows;
}

class TrafficTest : public ::testing::Test {
 protected:
  void Add(const std::string& client, uint64_t connection,
           const std::shared_ptr<const Shard>& shard, int rows, Policy policy = Policy::kExact) {
    test::TestCall call({shard}, rows);
    call.client = client;
    call.connection = connection;
    call.policy = policy;
    const Call* const calls[] = {&call};
    traffic_.Add(calls, kStart);
  }
  test::FakeBackend backend_;
  const std::shared_ptr<const Shard> a_ = test::MakeShard(backend_, "a", 1),
                                     b_ = test::MakeShard(backend_, "b", 2);
  Traffic traffic_;
};

TEST(TrafficTable, CountsEveryUnitOfTheLastMinute) {
  TrafficTable table;
  EXPECT_EQ(Look(table).rows, 0);
  for (int second = 0; second < 60; ++second) {
    Add(table, "a", 3, kStart + absl::Seconds(second));
    if (second % 2 == 0) Add(table, "b", 1, kStart + absl::Seconds(second));
  }
  const SeenTraffic seen = Look(table, kStart + absl::Seconds(60));
  EXPECT_EQ(seen.rows, 60 * 3 + 30);
  ASSERT_EQ(seen.units.size(), 2u);
  EXPECT_EQ(RowsOf(seen, "a"), 180);
  EXPECT_EQ(RowsOf(seen, "b"), 30);
  EXPECT_FALSE(seen.more);
}

TEST(TrafficTable, ForgetsWhatIsOlder) {
  TrafficTable table;
  Add(table, "old", 100);
  for (int second = 0; second <= 600; second += 5) {
    Add(table, "new", 1, kStart + absl::Seconds(second));
  }
  const absl::Time end = kStart + absl::Seconds(600);
  const SeenTraffic seen = Look(table, end);
  EXPECT_EQ(seen.units.size(), 1u);
  EXPECT_GE(seen.rows, 12);  // a minute's, and up to 15 seconds' more
  EXPECT_LE(seen.rows, 16);
  EXPECT_EQ(Look(table, end + absl::Minutes(3)).rows, 0);
  // A thread that was kept waiting for longer than the window tells of times that are over.
  Add(table, "late", 7, kStart);
  EXPECT_EQ(RowsOf(Look(table, end), "late"), 0);
}

TEST(TrafficTable, NamesThatAreMadeUpNeitherGrowItNorHideALargeUnit) {
  TrafficTable table;
  constexpr int kNames = 200000;
  for (int i = 0; i < kNames; ++i) {
    Add(table, "made-up-" + std::to_string(i), 1);
    if (i % 4 == 0) Add(table, "large", 1);
  }
  const SeenTraffic seen = Look(table);
  EXPECT_EQ(seen.rows, kNames + kNames / 4);
  EXPECT_LE(seen.units.size(), TrafficTable::kUnits);
  EXPECT_TRUE(seen.more);
  // It is a fifth of all rows: at most the 512th part of all is unsure.
  EXPECT_GT(RowsOf(seen, "large"), kNames / 4 * 9 / 10);
  EXPECT_LE(RowsOf(seen, "large"), kNames / 4);
  EXPECT_EQ(table.NameOf(KeyHash("large")), "large");
  EXPECT_EQ(table.NameOf(KeyHash("never there")), "");
  for (const UnitRows& unit : seen.units) {
    EXPECT_TRUE(unit.key == KeyHash("large") || unit.rows < kNames / 100);
  }
}

TEST_F(TrafficTest, ThreadsLoseNothing) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 5000; ++i) {
        Add("shared", 0, a_, 1);
        Add("own-" + std::to_string(t), 0, a_, 2);
        if (i % 1000 == 0) (void)traffic_.By(CanaryUnit::kClient, kStart);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const SeenTraffic seen = traffic_.By(CanaryUnit::kClient, kStart);
  EXPECT_EQ(seen.rows, 90000);
  EXPECT_EQ(seen.units.size(), 7u);
  EXPECT_EQ(RowsOf(seen, "shared"), 30000);
  EXPECT_EQ(RowsOf(seen, "own-3"), 10000);
}

TEST_F(TrafficTest, KnowsClientsConnectionsShardsAndPolicies) {
  Add("x", 1, a_, 1, Policy::kFastest);
  Add("x", 2, a_, 2, Policy::kExact);
  Add("y", 1, b_, 4, Policy::kFastest);
  const SeenTraffic clients = traffic_.By(CanaryUnit::kClient, kStart);
  EXPECT_EQ(RowsOf(clients, "x"), 3);
  EXPECT_EQ(RowsOf(clients, "y"), 4);
  const SeenTraffic connections = traffic_.By(CanaryUnit::kConnection, kStart);
  EXPECT_EQ(connections.units.size(), 3u);  // of two clients that have the number 1 in common
  EXPECT_EQ(RowsOf(traffic_.By(CanaryUnit::kShard, kStart), "b"), 4);
  EXPECT_EQ(traffic_.By(CanaryUnit::kBatch, kStart).units.size(), 2u);
  EXPECT_EQ(traffic_.FastestRows(kStart), 5);
  EXPECT_EQ(traffic_.NameOf(CanaryUnit::kShard, KeyHash("b")), "b");
  EXPECT_EQ(traffic_.NameOf(CanaryUnit::kClient, KeyHash("x")), "x");
  EXPECT_EQ(traffic_.NameOf(CanaryUnit::kConnection, connections.units[0].key),
            "a connection of " + std::string(connections.units[0].rows == 4 ? "y" : "x"));
}

}  // namespace
}  // namespace fulcrum

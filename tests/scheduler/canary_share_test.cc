// What a share of units is in traffic: told, brought near, or refused.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "scheduler/canary_split.h"
#include "tests/support/fake_backend.h"
#include "tests/support/test_call.h"

namespace fulcrum {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1000);
constexpr uint64_t kFirst = 77;

class CanaryShareTest : public ::testing::Test {
 protected:
  void Add(const std::string& client, int rows, uint64_t connection = 0,
           Policy policy = Policy::kBatchInvariant) {
    test::TestCall call({shard_}, rows);
    call.client = client;
    call.connection = connection;
    call.policy = policy;
    const Call* const calls[] = {&call};
    traffic_.Add(calls, kNow);
  }
  static CanarySpec Spec(double share, CanaryUnit unit = CanaryUnit::kClient) {
    return {.share = share, .unit = unit};
  }
  // As a canary of the spec would start.
  CanaryTraffic Chosen(const CanarySpec& spec) {
    return TrafficOf(traffic_, spec, ChooseSalt(traffic_, spec, kFirst, kNow), kNow);
  }

  test::FakeBackend backend_;
  std::shared_ptr<const Shard> shard_ = test::MakeShard(backend_, "s", 1);
  Traffic traffic_;
};

TEST_F(CanaryShareTest, NothingSeenIsSaidAndRefusesNothing) {
  const CanaryTraffic traffic = Chosen(Spec(0.05));
  EXPECT_EQ(traffic.rows, 0);
  EXPECT_EQ(traffic.clients, 0);
  EXPECT_TRUE(CheckEven(traffic, Spec(0.05)).ok());
  EXPECT_EQ(Outgrown(traffic, Spec(0.05)), "");
  EXPECT_EQ(ChooseSalt(traffic_, Spec(0.05), kFirst, kNow), kFirst);
}

TEST_F(CanaryShareTest, TenConnectionsOfOneAddressAreOneClientAndRefused) {
  for (uint64_t connection = 1; connection <= 10; ++connection) Add("10.0.0.7", 10, connection);
  const CanaryTraffic traffic = Chosen(Spec(0.05));
  EXPECT_EQ(traffic.clients, 1);
  EXPECT_EQ(traffic.units, 1);
  EXPECT_EQ(traffic.largest, 1);
  EXPECT_EQ(traffic.largest_unit, "10.0.0.7");
  const absl::Status refused = CheckEven(traffic, Spec(0.05));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("of the 100 rows of the last minute one client (10.0.0.7) sent 100%, more "
                        "than 5 times the share of 5%"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("Ask for a share of at least 20%"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("`identity`"));
  CanarySpec uneven = Spec(0.05);
  uneven.allow_uneven = true;
  EXPECT_TRUE(CheckEven(traffic, uneven).ok());
  // All of the traffic would be the other choice.
  EXPECT_EQ(Chosen(uneven).expected, 0);
  // Its connections are ten units of a tenth each.
  const CanaryTraffic apart = Chosen(Spec(0.05, CanaryUnit::kConnection));
  EXPECT_TRUE(CheckEven(apart, Spec(0.05, CanaryUnit::kConnection)).ok());
  EXPECT_EQ(apart.clients, 1);
  EXPECT_EQ(apart.units, 10);
  EXPECT_EQ(apart.canary_units, 1);
  EXPECT_DOUBLE_EQ(apart.expected, 0.1);
}

TEST_F(CanaryShareTest, FiveTimesTheShareIsTheLimit) {
  Add("large", 25);
  for (int i = 0; i < 25; ++i) Add("small-" + std::to_string(i), 3);
  EXPECT_TRUE(CheckEven(Chosen(Spec(0.05)), Spec(0.05)).ok());  // 25 %
  Add("large", 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckEven(Chosen(Spec(0.05)), Spec(0.05))));
  EXPECT_TRUE(CheckEven(Chosen(Spec(0.06)), Spec(0.06)).ok());
}

// Whatever the hash of names and epochs would have given.
TEST_F(CanaryShareTest, TheAssignmentComesNearTheShareOfTraffic) {
  for (int i = 0; i < 40; ++i) Add("client-" + std::to_string(i), 10 + i % 7);
  for (const double share : {0.05, 0.1, 0.2, 0.5, 0.9}) {
    for (uint64_t first = 1; first <= 50; ++first) {
      const CanarySpec spec = Spec(share);
      const uint64_t salt = ChooseSalt(traffic_, spec, first, kNow);
      EXPECT_NEAR(TrafficOf(traffic_, spec, salt, kNow).expected, share, 0.1 * share)
          << share << " from " << first;
      EXPECT_EQ(salt, ChooseSalt(traffic_, spec, first, kNow));
    }
  }
}

TEST_F(CanaryShareTest, FewUnitsGetNeitherNoneNorAllWhereItCanBeHelped) {
  for (const char* client : {"a", "b", "c", "d", "e"}) Add(client, 10);
  EXPECT_DOUBLE_EQ(Chosen(Spec(0.05)).expected, 0.2);  // of 0, 20, ... %
  EXPECT_DOUBLE_EQ(Chosen(Spec(0.9)).expected, 0.8);
  EXPECT_NEAR(Chosen(Spec(0.5)).expected, 0.5, 0.11);
}

TEST_F(CanaryShareTest, OneClientAloneHasNoControlSoItGetsNone) {
  Add("only", 10);
  EXPECT_EQ(Chosen(Spec(0.5)).expected, 0);
  EXPECT_TRUE(CheckEven(Chosen(Spec(0.5)), Spec(0.5)).ok());  // not five times a half
}

TEST_F(CanaryShareTest, ByBatchTheShareIsOfWhatCallsUnderFastestBrought) {
  Add("only", 30, 0, Policy::kFastest);
  Add("only", 70, 0, Policy::kExact);
  const CanarySpec spec = Spec(0.1, CanaryUnit::kBatch);
  const CanaryTraffic traffic = Chosen(spec);
  EXPECT_DOUBLE_EQ(traffic.expected, 0.03);
  EXPECT_EQ(traffic.clients, 1);
  EXPECT_TRUE(CheckEven(traffic, spec).ok());
  EXPECT_EQ(ChooseSalt(traffic_, spec, kFirst, kNow), kFirst);
}

TEST_F(CanaryShareTest, NamesThatAreMadeUpDoNotHideALargeUnit) {
  for (int i = 0; i < 100000; ++i) {
    Add("made-up-" + std::to_string(i), 1);
    if (i % 2 == 0) Add("large", 1);
  }
  const CanaryTraffic traffic = Chosen(Spec(0.05));
  EXPECT_TRUE(traffic.more);
  EXPECT_NEAR(traffic.largest, 1.0 / 3, 0.03);
  EXPECT_FALSE(CheckEven(traffic, Spec(0.05)).ok());
}

TEST_F(CanaryShareTest, TrafficThatOutgrewTheShareOfARunningCanaryIsSaid) {
  for (int i = 0; i < 40; ++i) Add("client-" + std::to_string(i), 10);
  const CanarySpec spec = Spec(0.05);
  const uint64_t salt = ChooseSalt(traffic_, spec, kFirst, kNow);
  EXPECT_EQ(Outgrown(TrafficOf(traffic_, spec, salt, kNow), spec), "");
  for (int i = 0;; ++i) {
    const std::string name = "new-" + std::to_string(i);
    if (!Assigned(salt, KeyHash(name), spec.share)) continue;
    Add(name, 600);
    break;
  }
  EXPECT_THAT(
      Outgrown(TrafficOf(traffic_, spec, salt, kNow), spec),
      HasSubstr("% of the 1000 rows of the last minute, more than 5 times its share of 5%"));
  CanarySpec uneven = spec;
  uneven.allow_uneven = true;
  EXPECT_EQ(Outgrown(TrafficOf(traffic_, spec, salt, kNow), uneven), "");
}

}  // namespace
}  // namespace fulcrum

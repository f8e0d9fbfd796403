// A canary's share of traffic on a node that has some: what it starts with, what it refuses, and
// what becomes of it when traffic changes. CanaryRig: a real scheduler.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/canary_rig.h"

namespace fulcrum {
namespace {

using test::Submit;
using test::TestCall;
using ::testing::HasSubstr;

class CanaryTrafficTest : public test::CanaryRig {
 protected:
  std::shared_ptr<TestCall> CallAs(const std::string& client, uint64_t connection = 0,
                                   int rows = 2) {
    auto call = std::make_shared<TestCall>(std::vector{shard_}, rows, 0.5f);
    call->client = client;
    call->connection = connection;
    EXPECT_TRUE(Submit(scheduler_, call).ok());
    EXPECT_TRUE(call->Await().ok()) << call->status;
    shadow_.Flush();
    const auto canary = levers_.View().canary;
    while (canary != nullptr && canary->valve->ungraded_rows > 0) std::this_thread::yield();
    return call;
  }
  // The share of `calls` calls, of connection after connection, that the canary's side got.
  double ShareOf(int calls, const std::string& client, uint64_t connections) {
    int on_canary = 0;
    for (int i = 0; i < calls; ++i) {
      on_canary += OnCanary(*CallAs(client, 1 + static_cast<uint64_t>(i) % connections));
    }
    return static_cast<double>(on_canary) / calls;
  }
  static std::string ClientOf(const CanaryReport& canary, bool its_side) {
    for (int i = 0;; ++i) {
      const std::string name = "client-" + std::to_string(i);
      if (Assigned(canary.salt, KeyHash(name), canary.spec.share) == its_side) return name;
    }
  }
  static CanarySpec FivePercent(CanaryUnit unit = CanaryUnit::kClient) {
    CanarySpec spec = Spec();
    spec.share = 0.05;
    spec.unit = unit;
    return spec;
  }
};

TEST_F(CanaryTrafficTest, TenConnectionsOfOneAddressAreRefusedAndConnectionsAreNot) {
  (void)ShareOf(100, "10.0.0.7", 10);
  for (const bool validate_only : {true, false}) {
    const auto refused = control_.Start(FivePercent(), 0, validate_only);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  }
  EXPECT_FALSE(control_.Last().has_value());
  const auto started = control_.Start(FivePercent(CanaryUnit::kConnection), 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->traffic.units, 10);
  EXPECT_DOUBLE_EQ(started->traffic.expected, 0.1);  // one of ten, which is as near as it gets
  EXPECT_DOUBLE_EQ(ShareOf(100, "10.0.0.7", 10), 0.1);
}

TEST_F(CanaryTrafficTest, AnUnevenOneThatIsAllowedSaysThatItGetsNothing) {
  (void)ShareOf(20, "10.0.0.7", 10);
  CanarySpec spec = FivePercent();
  spec.allow_uneven = true;
  const auto started = control_.Start(spec, 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->traffic.clients, 1);
  EXPECT_EQ(started->traffic.expected, 0);
  EXPECT_EQ(ShareOf(100, "10.0.0.7", 10), 0);
}

TEST_F(CanaryTrafficTest, FortyClientsGiveTheShareThatTheNodeSaid) {
  for (int i = 0; i < 80; ++i) CallAs("client-" + std::to_string(i % 40));
  const auto started = control_.Start(FivePercent(), 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->traffic.clients, 40);
  EXPECT_DOUBLE_EQ(started->traffic.expected, 0.05);
  int on_canary = 0;
  std::map<std::string, bool> side;
  for (int i = 0; i < 400; ++i) {
    const auto call = CallAs("client-" + std::to_string(i % 40));
    const bool canary = OnCanary(*call);
    on_canary += canary;
    EXPECT_EQ(side.emplace(call->client, canary).first->second, canary);  // none flips
  }
  EXPECT_EQ(on_canary, 20);
  EXPECT_EQ(control_.Last()->canary_side.clients, 2);
  EXPECT_EQ(control_.Last()->control_side.clients, 38);
  EXPECT_THAT(control_.Last()->evidence, HasSubstr("of 2 and 38 clients"));
}

TEST_F(CanaryTrafficTest, ClientsThatEvidenceIsOfMayBeAskedFor) {
  for (int i = 0; i < 80; ++i) CallAs("client-" + std::to_string(i % 40));
  CanarySpec spec = FivePercent();
  spec.guards.min_samples = 1;
  spec.guards.min_clients = 2;
  const uint64_t id = MustStart(spec);
  std::string one;
  for (int i = 0; one.empty(); ++i) {
    const std::string client = "client-" + std::to_string(i % 40);
    if (OnCanary(*CallAs(client))) one = client;
  }
  for (int i = 0; i < 10; ++i) CallAs(one);
  const absl::Status early = control_.Promote(id, "me", "").status();
  EXPECT_THAT(std::string(early.message()), HasSubstr("of 1 clients on the canary's side"));
  for (int i = 0; i < 40; ++i) CallAs("client-" + std::to_string(i));
  EXPECT_TRUE(control_.Promote(id, "me", "").ok());
}

// Nothing was seen when it began; then one client that its side has brings everything.
TEST_F(CanaryTrafficTest, TrafficThatOutgrowsTheShareReverts) {
  const auto started = control_.Start(FivePercent(), 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->traffic.rows, 0);
  const std::string heavy = ClientOf(*started, true), light = ClientOf(*started, false);
  for (int i = 0; i < 59; ++i) {
    CallAs(heavy, 0, 8);
    CallAs(light, 0, 1);
    clock_.AwaitSleeper(started->started + absl::Minutes(1));
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(control_.Last()->state, CanaryState::kRunning);  // a minute is what it is judged by
  CallAs(heavy, 0, 8);
  clock_.Advance(absl::Seconds(1));
  const CanaryReport report = AwaitEnd();
  EXPECT_EQ(report.state, CanaryState::kReverted);
  EXPECT_THAT(report.evidence, HasSubstr("more than 5 times its share of 5%"));
  EXPECT_THAT(report.evidence, HasSubstr("(1 of 2 clients; the largest alone"));
  EXPECT_FALSE(OnCanary(*CallAs(heavy)));
}

TEST_F(CanaryTrafficTest, UnlessThatIsAllowed) {
  CanarySpec spec = FivePercent();
  spec.allow_uneven = true;
  const auto started = control_.Start(spec, 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  const std::string heavy = ClientOf(*started, true);
  for (int i = 0; i < 5; ++i) {
    CallAs(heavy);
    clock_.Advance(absl::Seconds(20));
  }
  EXPECT_TRUE(OnCanary(*CallAs(heavy)));
  EXPECT_EQ(control_.Last()->state, CanaryState::kRunning);
}

}  // namespace
}  // namespace fulcrum

// The life of a canary, guard by guard, without threads or a clock.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>

#include "scheduler/canary_split.h"
#include "tests/support/fake_backend.h"

namespace fulcrum {
namespace {

using test::FakeBackend;
using test::MakeShard;
using ::testing::HasSubstr;
using Action = Canary::Action;

const absl::Time kStart = absl::FromUnixSeconds(100);
constexpr Arm kExactArm{.name = "exact"}, kTried{.name = "tried"}, kWanted{.name = "wanted"};

class CanaryTest : public ::testing::Test {
 protected:
  CanaryTest() {
    spec_.changes = {{"m16_tc", "all:one_pass"}};
    spec_.share = 0.05;
    spec_.guards.min_samples = 20;
  }
  void Begin() { canary_ = std::make_unique<Canary>(7, spec_, kStart); }

  void Batch(bool candidate, double kernel = 1e-4, const Arm* asked = nullptr,
             absl::Status status = absl::OkStatus()) {
    const Arm* const ran[] = {candidate ? tried_ : &kExactArm};
    const Arm* const control[] = {&kExactArm};
    const Arm* const asked_for[] = {asked};
    const std::shared_ptr<const Shard> shards[] = {shard_};
    canary_->OnBatch({.shards = shards,
                      .ran = ran,
                      .control = control,
                      .asked = asked_for,
                      .rows = 4,
                      .kernel = kernel,
                      .canary = 7,
                      .candidate = candidate,
                      .status = status},
                     now_);
  }
  void Batches(int each) {
    for (int i = 0; i < each; ++i) {
      Batch(false);
      Batch(true);
    }
  }
  void Shadow(ShadowResult result, bool candidate = true) {
    canary_->OnShadow({.arm = &kTried,
                       .shard = shard_.get(),
                       .result = result,
                       .canary = 7,
                       .candidate = candidate,
                       .detail = "far off"});
  }
  void ExpectRevert(const std::string& evidence) {
    const Canary::Decision decision = canary_->Decide(now_);
    EXPECT_EQ(decision.action, Action::kRevert);
    EXPECT_THAT(decision.evidence, HasSubstr(evidence));
  }

  FakeBackend backend_;
  std::shared_ptr<const Shard> shard_ = MakeShard(backend_, "s", 1);
  CanarySpec spec_;
  const Arm* tried_ = &kTried;
  absl::Time now_ = kStart;
  std::unique_ptr<Canary> canary_;
};

TEST_F(CanaryTest, SucceedsWhenItsTimeIsOverAndEnoughWasCompared) {
  for (CanarySuccess success : kAllCanarySuccesses) {
    spec_.on_success = success;
    now_ = kStart;
    Begin();
    Batches(20);
    EXPECT_EQ(canary_->Decide(now_).action, Action::kNone);
    EXPECT_EQ(canary_->NextLook(), kStart + spec_.duration);
    now_ = kStart + spec_.duration;
    const Canary::Decision decision = canary_->Decide(now_);
    EXPECT_EQ(decision.action, success == CanarySuccess::kHold ? Action::kHold : Action::kPromote);
    EXPECT_THAT(decision.evidence, HasSubstr("20 canary against 20 control batches"));
  }
}

TEST_F(CanaryTest, HoldingGoesOnUnderItsGuards) {
  Begin();
  Batches(20);
  canary_->Hold();
  now_ = kStart + 10 * spec_.duration;
  EXPECT_EQ(canary_->Decide(now_).action, Action::kNone);
  EXPECT_EQ(canary_->NextLook(), absl::InfiniteFuture());
  Shadow(ShadowResult::kFail);
  ExpectRevert("1 shadow checks failed (limit 0): tried on s version 1: far off");
}

TEST_F(CanaryTest, TooLittleToCompareIsNoSuccess) {
  Begin();
  Batches(19);
  EXPECT_TRUE(absl::IsFailedPrecondition(canary_->MayPromote()));
  now_ = kStart + spec_.duration;
  ExpectRevert("19 canary and 19 control batches could be compared, of 20 a side");
}

TEST_F(CanaryTest, BatchesThatTheCandidateDoesNotChangeProveNothing) {
  tried_ = &kExactArm;
  Begin();
  Batches(100);
  now_ = kStart + spec_.duration;
  ExpectRevert("100 batches of the canary ran the control's arm");
  // A lever that chooses no arm is judged by all its batches.
  spec_.changes = {{"coalesce_window_us", "10"}};
  now_ = kStart;
  Begin();
  Batches(20);
  EXPECT_TRUE(canary_->MayPromote().ok());
}

TEST_F(CanaryTest, EachCountRevertsAtOneMoreThanItsLimit) {
  spec_.guards.max_failed_launches = 1;
  Begin();
  Batch(false, 0, nullptr, absl::InternalError("control's"));
  Batch(true, 0, nullptr, absl::InternalError("first"));
  Batch(false, 0, nullptr, absl::InternalError("control's"));
  EXPECT_EQ(canary_->Decide(now_).action, Action::kNone);
  Batch(true, 0, nullptr, absl::InternalError("second"));
  ExpectRevert("2 launches failed (limit 1): second");

  Begin();
  Batch(false, 1e-4, &kWanted);
  EXPECT_EQ(canary_->Decide(now_).action, Action::kNone);
  Batch(true, 1e-4, &kWanted);
  ExpectRevert("1 batches declined the candidate (limit 0): tried ran where wanted was asked for");

  Begin();
  Shadow(ShadowResult::kPass);
  Shadow(ShadowResult::kDropped);
  Shadow(ShadowResult::kFail, /*candidate=*/false);
  EXPECT_EQ(canary_->Decide(now_).action, Action::kNone);
  Shadow(ShadowResult::kError);
  ExpectRevert("1 shadow checks failed");
}

TEST_F(CanaryTest, OneIncidentRevertsWhateverElseIsAllowed) {
  spec_.guards.max_shadow_failures = 1000000;
  Begin();
  Incident incident;
  incident.what = "audit";
  incident.shard = "s";
  incident.shard_version = 3;
  incident.arm = "tried";
  canary_->OnIncident(incident);
  ExpectRevert("wrong bits found by audit: shard s version 3, arm tried");
}

TEST_F(CanaryTest, ALostHeartbeatReverts) {
  spec_.guards.heartbeat = absl::Seconds(10);
  Begin();
  now_ = kStart + absl::Seconds(9);
  canary_->OnHeartbeat(now_);
  now_ += absl::Seconds(10);
  EXPECT_EQ(canary_->Decide(now_).action, Action::kNone);
  EXPECT_GT(canary_->NextLook(), now_);
  now_ = canary_->NextLook();
  ExpectRevert("no heartbeat for 10s");
}

TEST_F(CanaryTest, ASlowerKernelRevertsWithTheFigures) {
  Begin();
  for (int i = 0; i < 2000 && canary_->Decide(now_).action == Action::kNone; ++i) {
    Batch(i % 10 == 0, i % 10 == 0 ? 1.05e-4 : 1e-4);
  }
  ExpectRevert("kernel p50 of ffn_down decode, 3 to 4 rows");
}

TEST_F(CanaryTest, BatchesOfAnotherCanaryAreNotIts) {
  Begin();
  const Arm* const arms[] = {&kExactArm};
  const Arm* const none[] = {nullptr};
  const std::shared_ptr<const Shard> shards[] = {shard_};
  canary_->OnBatch({.shards = shards,
                    .ran = arms,
                    .control = arms,
                    .asked = none,
                    .canary = 6,
                    .candidate = true},
                   now_);
  EXPECT_EQ(canary_->Report().canary_side.batches, 0);
}

TEST_F(CanaryTest, WhatIsOverDecidesNothing) {
  Begin();
  Shadow(ShadowResult::kFail);
  canary_->End(CanaryState::kAborted, "by hand", now_);
  EXPECT_EQ(canary_->Decide(now_ + absl::Hours(100)).action, Action::kNone);
  EXPECT_EQ(canary_->NextLook(), absl::InfiniteFuture());
  const CanaryReport report = canary_->Report();
  EXPECT_EQ(report.state, CanaryState::kAborted);
  EXPECT_EQ(report.evidence, "by hand");
  EXPECT_EQ(report.ended, now_);
}

TEST(CanarySpec, NumbersOutsideTheirRangeAreRefusedByName) {
  const auto message = [](auto change) {
    CanarySpec spec{.share = 0.5};
    change(spec);
    return std::string(CheckCanary(spec).message());
  };
  EXPECT_EQ(message([](CanarySpec&) {}), "");
  EXPECT_THAT(message([](CanarySpec& s) { s.share = 0; }), HasSubstr("share: 0; expected more"));
  EXPECT_THAT(message([](CanarySpec& s) { s.share = 1; }), HasSubstr("share: 1"));
  EXPECT_THAT(message([](CanarySpec& s) { s.share = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("share: nan"));
  EXPECT_THAT(message([](CanarySpec& s) { s.duration = absl::ZeroDuration(); }),
              HasSubstr("duration: 0; expected 1s"));
  EXPECT_THAT(message([](CanarySpec& s) { s.guards.kernel_p50 = 0.9; }),
              HasSubstr("guards.kernel_p50: 0.9"));
  EXPECT_THAT(message([](CanarySpec& s) { s.guards.min_samples = 0; }),
              HasSubstr("guards.min_samples: 0"));
  EXPECT_THAT(message([](CanarySpec& s) { s.guards.max_declines = -1; }),
              HasSubstr("guards.max_declines: -1"));
  EXPECT_THAT(message([](CanarySpec& s) { s.guards.heartbeat = absl::Milliseconds(1); }),
              HasSubstr("guards.heartbeat: 1ms"));
}

TEST(StickyAssignment, IsEvenStickyAndGrowsWithTheShare) {
  constexpr int kKeys = 20000;
  for (uint64_t salt : {1, 2, 77}) {
    int small = 0, large = 0;
    for (int i = 0; i < kKeys; ++i) {
      const uint64_t key = KeyHash("client-" + std::to_string(i));
      const bool in_small = Assigned(salt, key, 0.05);
      EXPECT_EQ(in_small, Assigned(salt, key, 0.05));
      EXPECT_TRUE(!in_small || Assigned(salt, key, 0.3));
      small += in_small;
      large += Assigned(salt, key, 0.3);
    }
    EXPECT_NEAR(small, 0.05 * kKeys, 5 * std::sqrt(0.05 * 0.95 * kKeys));
    EXPECT_NEAR(large, 0.3 * kKeys, 5 * std::sqrt(0.3 * 0.7 * kKeys));
  }
  // Two canaries draw independently.
  int both = 0;
  for (int i = 0; i < kKeys; ++i) {
    const uint64_t key = KeyHash(std::to_string(i));
    both += Assigned(3, key, 0.5) && Assigned(4, key, 0.5);
  }
  EXPECT_NEAR(both, 0.25 * kKeys, 5 * std::sqrt(0.25 * 0.75 * kKeys));
  EXPECT_EQ(StickyHash(1, KeyHash("a")), StickyHash(1, KeyHash("a")));
  EXPECT_NE(StickyHash(1, KeyHash("a")), StickyHash(2, KeyHash("a")));
}

}  // namespace
}  // namespace fulcrum

// How a canary ends that nothing reverts, and ends that the journal does not keep.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <span>
#include <thread>

#include "tests/support/canary_rig.h"

namespace fulcrum {
namespace {

using test::FakeClock;
using test::RecordingObserver;
using ::testing::HasSubstr;

using CanaryEndTest = test::CanaryRig;

TEST_F(CanaryEndTest, PromotesItselfWhenItsTimeIsOver) {
  CanarySpec spec = Spec();
  spec.on_success = CanarySuccess::kPromote;
  const uint64_t id = MustStart(spec);
  EXPECT_TRUE(absl::IsFailedPrecondition(control_.Promote(id, "me", "").status()));  // too early
  for (int i = 0; i < 400; ++i) {
    CallOnce();
    shadow_.Flush();
  }
  clock_.Advance(spec.duration);
  EXPECT_EQ(AwaitEnd().state, CanaryState::kPromoted);
  EXPECT_EQ(levers_.Snapshot()->levers.Print(Lever::kM16Tc), "all:one_pass");
  EXPECT_TRUE(OnCanary(*CallOnce()));
  EXPECT_EQ(levers_.History().back().cause, LeverCause::kPromote);
  EXPECT_THAT(levers_.History().back().evidence, HasSubstr("no breach"));
  EXPECT_TRUE(absl::IsFailedPrecondition(control_.Abort(id, "me", "").status()));
  EXPECT_TRUE(absl::IsNotFound(control_.Abort(id + 100, "me", "").status()));
}

TEST_F(CanaryEndTest, HoldsUntilAnOperatorPromotes) {
  CanarySpec spec = Spec();
  const uint64_t id = MustStart(spec);
  for (int i = 0; i < 400; ++i) {
    CallOnce();
    shadow_.Flush();
  }
  clock_.Advance(spec.duration);
  while (control_.Last()->state != CanaryState::kHolding) std::this_thread::yield();
  EXPECT_EQ(levers_.Snapshot()->levers.Print(Lever::kM16Tc), "off");
  ASSERT_TRUE(control_.Promote(id, "me", "looks good").ok());
  EXPECT_EQ(levers_.Snapshot()->levers.Print(Lever::kM16Tc), "all:one_pass");
  EXPECT_EQ(levers_.History().back().actor, "me");
}

// A log that takes the start of a canary and nothing after it, until there is room.
class LogOfOne final : public LeverLog {
 public:
  absl::Status Append(const LeverStep& step) override {
    if (!room && step.front().cause != LeverCause::kCanaryStart) {
      ++refused;
      return absl::UnavailableError("disk full");
    }
    ++kept;
    return absl::OkStatus();
  }
  std::atomic<bool> room = false;
  std::atomic<int> refused = 0, kept = 0;
};

TEST_F(CanaryEndTest, AnEndThatCannotBeKeptIsSaidAndWrittenAsSoonAsItCan) {
  FakeClock clock;
  LogOfOne log;
  LeverStore levers(clock, {}, {.log = &log});
  RecordingObserver observer;
  CanaryControl control(levers, observer, clock, nullptr);
  const auto started =
      control.Start({.changes = {{"m16_tc", "all:one_pass"}}, .share = 0.5}, 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_FALSE(started->not_kept);
  const auto ended = control.Abort(started->id, "me", "enough");
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(ended->not_kept);
  EXPECT_THAT(ended->evidence, HasSubstr("not in the journal: disk full"));
  const absl::Time limit = absl::Now() + absl::Minutes(1);
  while (log.refused < 2 && absl::Now() < limit) std::this_thread::yield();
  EXPECT_EQ(log.refused, 2);  // the end, and one try: the clock stands still
  log.room = true;
  while (levers.unwritten() && absl::Now() < limit) {
    clock.Advance(absl::Seconds(10));
    std::this_thread::yield();
  }
  EXPECT_FALSE(levers.unwritten());
  EXPECT_EQ(log.kept, 2);
}

TEST_F(CanaryEndTest, APromotionThatCannotBeKeptIsToldOnce) {
  FakeClock clock;
  LogOfOne log;
  LeverStore levers(clock, {}, {.log = &log});
  RecordingObserver observer;
  std::atomic<int> told = 0;
  CanaryControl control(levers, observer, clock, [&](const CanaryReport&) { ++told; });
  CanarySpec spec{.changes = {{"m16_tc", "all:one_pass"}}, .share = 0.5};
  spec.guards.min_samples = 1;
  spec.on_success = CanarySuccess::kPromote;
  const auto started = control.Start(spec, 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  constexpr Arm kExactArm{.name = "exact"}, kTried{.name = "tried"};
  for (bool candidate : {false, true}) {
    const Arm* const ran[] = {candidate ? &kTried : &kExactArm};
    const Arm* const exact[] = {&kExactArm};
    const Arm* const asked[] = {nullptr};
    control.OnBatch({.shards = std::span(&shard_, 1),
                     .ran = ran,
                     .control = exact,
                     .asked = asked,
                     .rows = 4,
                     .kernel = 1e-4,
                     .canary = started->id,
                     .candidate = candidate});
  }
  const absl::Time limit = absl::Now() + absl::Minutes(1);
  for (int i = 0; i < 3; ++i) {
    clock.Advance(spec.duration + absl::Seconds(10));
    while (told < 2 && absl::Now() < limit) std::this_thread::yield();
  }
  EXPECT_EQ(told, 2);  // the start, and this
  EXPECT_EQ(control.Last()->state, CanaryState::kRunning);
  EXPECT_THAT(control.Last()->evidence, HasSubstr("disk full"));
}

}  // namespace
}  // namespace fulcrum

// Evidence belongs to the version of a weight that it was gathered on: weights that are replaced,
// loaded and unloaded while a canary runs. CanaryRig: a real scheduler, and the shadow check.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/canary_rig.h"
#include "tests/support/fake_backend.h"

namespace fulcrum {
namespace {

using test::Submit;
using test::TestCall;
using ::testing::HasSubstr;

constexpr char kName[] = "models/m/shards/s";

class CanaryVersionsTest : public test::CanaryRig {
 protected:
  static LoadRequest Request(const std::string& name, uint64_t seed) {
    return {.name = name,
            .family = Family::kFfnDown,
            .source = std::make_shared<test::MemoryWeight>(
                test::RandomFp8(192, 256, test::WeightKind::kGaussian, seed)),
            .device = "",
            .expect_hash = ""};
  }
  void Replace(uint64_t seed) {
    const auto replaced = store_.Replace(Request(kName, seed));
    ASSERT_TRUE(replaced.ok()) << replaced.status();
    shard_ = *replaced;
  }
  // So many batches of the canary's side, and what comes with them on the control's.
  void RunCanaryBatches(int64_t count) {
    for (int64_t on_canary = 0; on_canary < count; on_canary += OnCanary(*CallOnce())) {
      shadow_.Flush();
      AwaitGraded();
    }
    shadow_.Flush();
    AwaitGraded();
  }
  // A batch is offered to the check after its reply; its rows count as ungraded before that.
  void AwaitGraded() {
    const auto canary = levers_.View().canary;
    while (canary != nullptr && canary->valve->ungraded_rows > 0) std::this_thread::yield();
  }
  CanaryReport Last() const { return *control_.Last(); }
};

TEST_F(CanaryVersionsTest, TheFirstBatchesOfAReplacedWeightAreAllChecked) {
  ASSERT_TRUE(levers_.Set({{"shadow_rate", "0"}}, {}).ok());
  MustStart(Spec());
  RunCanaryBatches(CanaryValve::kFirstBatches + 30);
  EXPECT_EQ(Last().canary_side.shadow_passed, CanaryValve::kFirstBatches);
  Replace(4);
  RunCanaryBatches(CanaryValve::kFirstBatches + 30);
  EXPECT_EQ(Last().canary_side.shadow_passed, CanaryValve::kFirstBatches);
  EXPECT_EQ(Last().canary_side.batches, CanaryValve::kFirstBatches + 30);  // of the new one alone
  ASSERT_EQ(Last().restarts.size(), 1u);
  EXPECT_EQ(Last().restarts[0].shadow_passed, CanaryValve::kFirstBatches);
}

TEST_F(CanaryVersionsTest, AnArmThatIsWrongOnTheNewWeightIsFoundBeforeTwoHundredRows) {
  ASSERT_TRUE(levers_.Set({{"shadow_rate", "0"}}, {}).ok());
  MustStart(Spec());
  RunCanaryBatches(CanaryValve::kFirstBatches + 30);
  Replace(4);
  plant_->wrong_on = shard_->weight.get();
  RunUntilEnded();
  const CanaryReport report = AwaitEnd();
  EXPECT_EQ(report.state, CanaryState::kReverted);
  EXPECT_THAT(report.evidence, HasSubstr("shadow checks failed"));
  EXPECT_THAT(report.evidence, HasSubstr("models/m/shards/s version 2"));
  EXPECT_LT(plant_->wrong_rows.load(), 200);
  EXPECT_GT(plant_->wrong_rows.load(), 0);
}

TEST_F(CanaryVersionsTest, SoAreThoseOfAWeightThatWasLoadedMeanwhile) {
  ASSERT_TRUE(levers_.Set({{"shadow_rate", "0"}}, {}).ok());
  MustStart(Spec());
  RunCanaryBatches(CanaryValve::kFirstBatches + 30);
  const auto old = shard_;
  const auto loaded = store_.Load(Request("models/m/shards/new", 5));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  shard_ = *loaded;
  RunCanaryBatches(20);
  // It has no evidence of another version, so what there is of other weights stays.
  EXPECT_EQ(Last().restart_count, 0);
  EXPECT_EQ(Last().canary_side.shadow_passed, CanaryValve::kFirstBatches + 20);
  // A weight of the beginning is checked no more than before.
  shard_ = old;
  RunCanaryBatches(20);
  EXPECT_EQ(Last().canary_side.shadow_passed, CanaryValve::kFirstBatches + 20);
  shard_ = *loaded;
  plant_->wrong_on = shard_->weight.get();
  RunUntilEnded();
  EXPECT_THAT(AwaitEnd().evidence, HasSubstr("models/m/shards/new version 1"));
  EXPECT_LT(plant_->wrong_rows.load(), 200);
}

TEST_F(CanaryVersionsTest, ACallOfSeveralWeightsIsCheckedWhenOneOfThemIsNew) {
  ASSERT_TRUE(levers_.Set({{"shadow_rate", "0"}}, {}).ok());
  const auto other = store_.Load(Request("models/m/shards/other", 5));
  ASSERT_TRUE(other.ok()) << other.status();
  MustStart(Spec());
  RunCanaryBatches(CanaryValve::kFirstBatches + 10);
  Replace(4);
  int64_t on_canary = 0;
  for (int i = 0; on_canary < 10; ++i) {
    auto call = std::make_shared<TestCall>(std::vector{*other, shard_}, 2, 0.5f);
    call->client = "client-" + std::to_string(i % 40);
    ASSERT_TRUE(Submit(scheduler_, call).ok());
    ASSERT_TRUE(call->Await().ok()) << call->status;
    on_canary += OnCanary(*call);
    shadow_.Flush();
    AwaitGraded();
  }
  EXPECT_EQ(Last().canary_side.shadow_passed, 20);  // of both weights
}

TEST_F(CanaryVersionsTest, EvidenceOfTheOldWeightDoesNotPromoteTheNewOne) {
  CanarySpec spec = Spec();
  spec.on_success = CanarySuccess::kPromote;
  const uint64_t id = MustStart(spec);
  RunCanaryBatches(100);
  ASSERT_GT(Last().comparable_canary, spec.guards.min_samples);
  Replace(4);
  // Before any batch of the new weight ran: the store said that it serves.
  const absl::Status early = control_.Promote(id, "me", "").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(early));
  EXPECT_THAT(std::string(early.message()), HasSubstr("0 canary and 0 control batches"));
  RunCanaryBatches(5);
  EXPECT_TRUE(absl::IsFailedPrecondition(control_.Promote(id, "me", "").status()));
  // Its time begins again too, and what promotes it then names both versions.
  clock_.Advance(spec.duration / 2);
  Replace(6);
  RunCanaryBatches(60);
  clock_.Advance(spec.duration / 2 + absl::Seconds(1));
  CallOnce();
  EXPECT_EQ(Last().state, CanaryState::kRunning);
  clock_.Advance(spec.duration / 2);
  const CanaryReport report = AwaitEnd();
  EXPECT_EQ(report.state, CanaryState::kPromoted);
  const std::string evidence = levers_.History().back().evidence;
  EXPECT_EQ(evidence, report.evidence);
  EXPECT_THAT(evidence, HasSubstr("evidence began again 2 times: models/m/shards/s: version 1"));
  EXPECT_THAT(evidence, HasSubstr("was replaced by version 2 (hash"));
  EXPECT_THAT(evidence, HasSubstr("version 2 (hash"));
  EXPECT_THAT(evidence, HasSubstr("was replaced by version 3 (hash " + shard_->hash.substr(0, 12)));
  EXPECT_THAT(evidence, HasSubstr("before it 100 canary against"));
}

TEST_F(CanaryVersionsTest, UnloadedAndLoadedAgainIsAnotherVersion) {
  const uint64_t id = MustStart(Spec());
  RunCanaryBatches(60);
  shard_.reset();
  while (!store_.Unload(kName, absl::Seconds(60)).ok()) std::this_thread::yield();
  const auto loaded = store_.Load(Request(kName, 4));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  shard_ = *loaded;
  EXPECT_TRUE(absl::IsFailedPrecondition(control_.Promote(id, "me", "").status()));
  ASSERT_EQ(Last().restarts.size(), 1u);
  EXPECT_EQ(Last().restarts[0].before.version, 1u);
  EXPECT_EQ(Last().restarts[0].after.version, 2u);
}

// Enough is compared again, but of other weights alone.
TEST_F(CanaryVersionsTest, AReplacementThatTheCanaryNeverRanIsNotPromoted) {
  const auto other = store_.Load(Request("models/m/shards/other", 5));
  ASSERT_TRUE(other.ok()) << other.status();
  const uint64_t id = MustStart(Spec());
  RunCanaryBatches(30);
  Replace(4);
  const auto replaced = shard_;
  shard_ = *other;
  RunCanaryBatches(60);
  const absl::Status early = control_.Promote(id, "me", "").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(early));
  EXPECT_THAT(std::string(early.message()),
              HasSubstr("no batch of the canary's side has run on models/m/shards/s version 2"));
  shard_ = replaced;
  RunCanaryBatches(1);
  EXPECT_TRUE(control_.Promote(id, "me", "").ok());
}

TEST_F(CanaryVersionsTest, UnlessItIsUnloaded) {
  const auto other = store_.Load(Request("models/m/shards/other", 5));
  ASSERT_TRUE(other.ok()) << other.status();
  const uint64_t id = MustStart(Spec());
  RunCanaryBatches(30);
  Replace(4);
  shard_ = *other;
  RunCanaryBatches(60);
  while (!store_.Unload(kName, absl::Seconds(60)).ok()) std::this_thread::yield();
  EXPECT_TRUE(control_.Promote(id, "me", "").ok());
}

// What the canary's side never had it owes nothing of.
TEST_F(CanaryVersionsTest, AWeightOfTheControlsSideMayBeReplaced) {
  const auto other = store_.Load(Request("models/m/shards/other", 5));
  ASSERT_TRUE(other.ok()) << other.status();
  CanarySpec spec = Spec();
  spec.unit = CanaryUnit::kShard;
  const auto started = control_.Start(spec, 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  const auto on_canary = [&](const std::string& name) {
    return Assigned(started->salt, KeyHash(name), spec.share);
  };
  std::string control_name;
  for (int i = 0; control_name.empty(); ++i) {
    const std::string name = "models/m/shards/c" + std::to_string(i);
    if (!on_canary(name)) control_name = name;
  }
  std::shared_ptr<const Shard> canary_shard;
  for (int i = 0; canary_shard == nullptr; ++i) {
    const std::string name = "models/m/shards/d" + std::to_string(i);
    if (on_canary(name)) canary_shard = *store_.Load(Request(name, 5));
  }
  shard_ = *store_.Load(Request(control_name, 5));
  for (int i = 0; i < 30; ++i) CallOnce();
  const auto replaced = store_.Replace(Request(control_name, 6));
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  for (int i = 0; i < 60; ++i) {
    shard_ = i % 2 == 0 ? *replaced : canary_shard;
    CallOnce();
    shadow_.Flush();
    AwaitGraded();
  }
  EXPECT_EQ(Last().restart_count, 1);
  const absl::Status promoted = control_.Promote(started->id, "me", "").status();
  EXPECT_TRUE(promoted.ok()) << promoted;
}

TEST_F(CanaryVersionsTest, ACanaryThatHoldsGathersAnew) {
  MustStart(Spec());
  RunCanaryBatches(60);
  clock_.Advance(Spec().duration);
  while (Last().state != CanaryState::kHolding) std::this_thread::yield();
  Replace(4);
  EXPECT_EQ(Last().state, CanaryState::kRunning);
  EXPECT_EQ(Last().comparable_canary, 0);
  // With nothing to compare it reverts when its time is over, as any other.
  clock_.Advance(Spec().duration);
  EXPECT_EQ(AwaitEnd().state, CanaryState::kReverted);
  EXPECT_THAT(AwaitEnd().evidence, HasSubstr("0 canary and 0 control batches"));
}

TEST_F(CanaryVersionsTest, AWeightThatDidNotRunUnderItEndsNoEvidence) {
  const auto idle = store_.Load(Request("models/m/shards/idle", 5));
  ASSERT_TRUE(idle.ok()) << idle.status();
  MustStart(Spec());
  RunCanaryBatches(30);
  ASSERT_TRUE(store_.Replace(Request("models/m/shards/idle", 6)).ok());
  EXPECT_EQ(Last().restart_count, 0);
  EXPECT_GT(Last().comparable_canary, 0);
}

TEST_F(CanaryVersionsTest, AReplacementThatFailsEndsNoEvidence) {
  MustStart(Spec());
  RunCanaryBatches(30);
  LoadRequest request = Request(kName, 6);
  request.expect_hash = std::string(64, '0');
  EXPECT_FALSE(store_.Replace(request).ok());
  RunCanaryBatches(5);
  EXPECT_EQ(Last().restart_count, 0);
}

// Both sides run what is set meanwhile, so what was compared before was another comparison.
TEST_F(CanaryVersionsTest, ALeverThatChoosesArmsBeginsEvidenceAgainAndAnotherDoesNot) {
  ASSERT_TRUE(levers_.Set({{"shadow_rate", "0"}}, {}).ok());
  const uint64_t id = MustStart(Spec());
  RunCanaryBatches(CanaryValve::kFirstBatches + 10);
  ASSERT_TRUE(levers_.Set({{"max_batch_rows", "16"}, {"shadow_rate", "0"}}, {}).ok());
  RunCanaryBatches(10);
  EXPECT_EQ(Last().restart_count, 0);
  const auto set = levers_.Set({{"q2_imma", "off"}}, {});
  ASSERT_TRUE(set.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(control_.Promote(id, "me", "").status()));
  EXPECT_EQ(Last().restart_count, 1);
  RunCanaryBatches(50);
  EXPECT_EQ(Last().canary_side.shadow_passed, 50);  // checked again although the rate is 0
  const absl::Status promoted = control_.Promote(id, "me", "").status();
  ASSERT_TRUE(promoted.ok()) << promoted;
  EXPECT_THAT(levers_.History().back().evidence,
              HasSubstr("evidence began again once: a lever that chooses arms was set (epoch " +
                        std::to_string((*set)->epoch - 1) + ")"));
}

// What is under way when a weight is replaced: batches that were picked, checks that wait.
TEST_F(CanaryVersionsTest, LateResultsOfTheOldWeightCountForNothingButAFailureDoes) {
  const auto old = shard_;
  const uint64_t id = MustStart(Spec());
  RunCanaryBatches(30);
  Replace(4);
  RunCanaryBatches(3);
  const CanaryReport before = Last();
  static constexpr Arm kExactArm{.name = "exact"}, kTried{.name = "tried"};
  const Arm *const ran[] = {&kTried}, *const exact[] = {&kExactArm}, *const asked[] = {nullptr};
  control_.OnBatch({.shards = std::span(&old, 1),
                    .ran = ran,
                    .control = exact,
                    .asked = asked,
                    .rows = 4,
                    .kernel = 1e-4,
                    .canary = id,
                    .candidate = true});
  ShadowEvent check{.arm = &kTried, .shard = old.get(), .canary = id, .candidate = true};
  control_.OnShadow(check);
  EXPECT_EQ(Last().canary_side.batches, before.canary_side.batches);
  EXPECT_EQ(Last().canary_side.shadow_passed, before.canary_side.shadow_passed);
  EXPECT_EQ(Last().restart_count, 1);
  check.result = ShadowResult::kFail;
  check.detail = "far off";
  control_.OnShadow(check);
  EXPECT_THAT(AwaitEnd().evidence, HasSubstr("tried on models/m/shards/s version 1: far off"));
  EXPECT_THAT(AwaitEnd().evidence, HasSubstr("evidence began again once"));
}

// A canary that may fail a check has not one more a version.
TEST_F(CanaryVersionsTest, WhatHadGoneWrongStillCountsAfterwards) {
  CanarySpec spec = Spec();
  spec.guards.max_shadow_failures = 1;
  const uint64_t id = MustStart(spec);
  RunCanaryBatches(5);
  static constexpr Arm kTried{.name = "tried"};
  const auto fail = [&] {
    control_.OnShadow({.arm = &kTried,
                       .shard = shard_.get(),
                       .result = ShadowResult::kFail,
                       .canary = id,
                       .candidate = true,
                       .detail = "far off"});
  };
  fail();
  Replace(4);
  RunCanaryBatches(5);
  EXPECT_EQ(Last().state, CanaryState::kRunning);
  EXPECT_EQ(Last().canary_side.shadow_failed, 1);
  fail();
  EXPECT_THAT(AwaitEnd().evidence, HasSubstr("2 shadow checks failed (limit 1)"));
}

TEST_F(CanaryVersionsTest, TheRecordOfManyReplacementsIsBounded) {
  MustStart(Spec());
  for (uint64_t seed = 10; seed < 40; ++seed) {
    RunCanaryBatches(1);
    Replace(seed);
  }
  EXPECT_EQ(Last().restart_count, 30);
  EXPECT_LE(Last().restarts.size(), 8u);
  EXPECT_THAT(Last().evidence, HasSubstr("began again 30 times, the last 8: "));
  EXPECT_THAT(Last().evidence, HasSubstr("replaced by version 31"));
  EXPECT_LT(Last().evidence.size(), 4096u);
}

TEST(CanaryVersions, KnowsTheLatestAndWhetherItRan) {
  test::FakeBackend backend;
  auto one = std::make_shared<Shard>(*test::MakeShard(backend, "s", 1)), two = one;
  two = std::make_shared<Shard>(*one);
  two->version = 2;
  using Standing = CanaryVersions::Standing;
  CanaryVersions versions;
  EXPECT_EQ(versions.Look(*one, false), Standing::kNew);
  EXPECT_FALSE(versions.Note(VersionOf(*one)).has_value());
  EXPECT_EQ(versions.Look(*one, false), Standing::kNew);  // it has not run
  versions.Ran(*one, false);
  EXPECT_EQ(versions.Look(*one, false), Standing::kRan);
  EXPECT_EQ(versions.Look(*one, true), Standing::kNew);
  versions.Ran(*one, true);
  EXPECT_EQ(versions.Look(*one, true), Standing::kRan);
  EXPECT_FALSE(versions.Untried().has_value());
  const auto before = versions.Note(VersionOf(*two));
  ASSERT_TRUE(before.has_value());
  EXPECT_EQ(before->version, 1u);
  EXPECT_EQ(versions.Look(*one, true), Standing::kPast);
  EXPECT_EQ(versions.Look(*two, true), Standing::kNew);
  EXPECT_FALSE(versions.Note(VersionOf(*one)).has_value());  // a late one
  ASSERT_TRUE(versions.Untried().has_value());
  EXPECT_EQ(versions.Untried()->version, 2u);
  versions.Ran(*two, false);
  EXPECT_TRUE(versions.Untried().has_value());
  versions.Ran(*two, true);
  EXPECT_FALSE(versions.Untried().has_value());
}

}  // namespace
}  // namespace fulcrum

// The first batches of a canary, which are all checked: while the checks are behind, its side runs
// the live levers, which bounds what a wrong arm can serve and for so long lets a client of that
// side see both epochs. Who is on the control's side never does, and once the first ones are
// checked nobody.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/canary_control.h"
#include "scheduler/scheduler.h"
#include "scheduler/shadow.h"
#include "tests/support/fake_clock.h"
#include "tests/support/planted_backend.h"
#include "tests/support/random_weights.h"
#include "tests/support/test_call.h"

namespace fulcrum {
namespace {

constexpr int kRows = 8;

// Lets the results of checks pass, or holds the thread that has one.
class Gate : public Observer {
 public:
  explicit Gate(Observer& next) : next_(next) {}
  void OnShadow(const ShadowEvent& event) override {
    {
      absl::MutexLock lock(&mu_);
      while (!open_) changed_.Wait(&mu_);
    }
    next_.OnShadow(event);
  }
  void SetOpen(bool open) {
    absl::MutexLock lock(&mu_);
    open_ = open;
    changed_.SignalAll();
  }

 private:
  Observer& next_;
  absl::Mutex mu_;
  absl::CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
};

class CanaryFirstBatches : public ::testing::Test {
 protected:
  CanaryFirstBatches() {
    auto loaded = store_.Load({.name = "models/m/shards/s",
                               .family = Family::kFfnDown,
                               .source = std::make_shared<test::MemoryWeight>(
                                   test::RandomFp8(192, 256, test::WeightKind::kGaussian, 3)),
                               .device = "",
                               .expect_hash = ""});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    shard_ = *loaded;
    const auto started =
        control_.Start({.changes = {{"m16_tc", "all:one_pass"}}, .share = 0.5}, 0, false);
    EXPECT_TRUE(started.ok()) << started.status();
    report_ = *started;
    valve_ = levers_.View().canary->valve;
    on_canary_ = ClientOf(true);
    on_control_ = ClientOf(false);
  }
  ~CanaryFirstBatches() override {
    gate_.SetOpen(true);
    scheduler_.Drain(absl::InfiniteDuration());
  }

  std::string ClientOf(bool canary) const {
    for (int i = 0;; ++i) {
      std::string name = "client-" + std::to_string(i);
      if (Assigned(report_.salt, KeyHash(name), report_.spec.share) == canary) return name;
    }
  }
  // The epoch of the reply to one call.
  uint64_t EpochOf(const std::string& client, Policy policy = Policy::kBatchInvariant) {
    auto call = std::make_shared<test::TestCall>(std::vector{shard_}, kRows, 0.5f);
    call->client = client;
    call->policy = policy;
    EXPECT_TRUE(Submit(scheduler_, call).ok());
    EXPECT_TRUE(call->Await().ok()) << call->status;
    last_ = call;
    return call->provenance.lever_epoch;
  }

  test::PlantedBackend backend_{std::make_shared<test::PlantedArm>()};
  test::FakeClock clock_;
  LeverStore levers_{clock_};
  Observer nobody_;
  CanaryControl control_{levers_, nobody_, clock_, nullptr};
  Gate gate_{control_};
  ShardStore store_{{&backend_}, nullptr};
  std::shared_ptr<const Shard> shard_;
  Shadow shadow_{gate_, nullptr, {}};
  Scheduler scheduler_{{&backend_}, levers_, control_, {nullptr, &shadow_}, clock_, {}};
  CanaryReport report_;
  std::shared_ptr<CanaryValve> valve_;
  std::string on_canary_, on_control_;
  std::shared_ptr<test::TestCall> last_;
};

TEST_F(CanaryFirstBatches, WhileChecksAreBehindItsSideRunsTheLiveLevers) {
  gate_.SetOpen(false);
  // One batch at a time: as many as the allowance has rows for, then none.
  const int64_t allowed = CanaryValve::kMaxUngradedRows / kRows;
  for (int64_t i = 0; i < 3 * allowed; ++i) {
    EXPECT_EQ(EpochOf(on_canary_), i < allowed ? report_.epoch : report_.control_epoch) << i;
    EXPECT_EQ(EpochOf(on_control_), report_.control_epoch) << i;
  }
  gate_.SetOpen(true);
  shadow_.Flush();
  EXPECT_EQ(EpochOf(on_canary_), report_.epoch);  // again
  EXPECT_EQ(EpochOf(on_control_), report_.control_epoch);
}

TEST_F(CanaryFirstBatches, WhatIsHeldBackCountsForNeitherSide) {
  gate_.SetOpen(false);
  const int64_t allowed = CanaryValve::kMaxUngradedRows / kRows;
  for (int64_t i = 0; i < 3 * allowed; ++i) (void)EpochOf(on_canary_);
  scheduler_.Drain(absl::InfiniteDuration());  // what was answered is told
  const CanaryReport report = *control_.Last();
  EXPECT_EQ(report.canary_side.batches, allowed);
  EXPECT_EQ(report.control_side.batches, 0);
  EXPECT_EQ(report.comparable_control, 0);
  // So that a canary without a control is not promoted, whatever was held back.
  clock_.Advance(report.spec.duration + absl::Seconds(1));
  while (control_.Last()->ended == absl::InfiniteFuture()) std::this_thread::yield();
  EXPECT_EQ(control_.Last()->state, CanaryState::kReverted);
}

TEST_F(CanaryFirstBatches, ExactCallsHaveTheSameBitsInBothEpochs) {
  gate_.SetOpen(false);
  EXPECT_EQ(EpochOf(on_canary_, Policy::kExact), report_.epoch);
  const auto in_candidate = last_->outputs;
  for (int64_t rows = 0; EpochOf(on_canary_) == report_.epoch; rows += kRows) {
    ASSERT_LE(rows, CanaryValve::kMaxUngradedRows);
  }
  EXPECT_EQ(EpochOf(on_canary_, Policy::kExact), report_.control_epoch);
  EXPECT_EQ(last_->outputs, in_candidate);
}

TEST_F(CanaryFirstBatches, OnceTheyAreCheckedAClientKeepsItsEpoch) {
  while (valve_->batches < CanaryValve::kFirstBatches) {
    (void)EpochOf(on_canary_);
    shadow_.Flush();
  }
  while (valve_->ungraded_rows > 0) std::this_thread::yield();
  // Checks that are behind no longer matter.
  gate_.SetOpen(false);
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(EpochOf(on_canary_), report_.epoch) << i;
    ASSERT_EQ(EpochOf(on_control_), report_.control_epoch) << i;
  }
}

}  // namespace
}  // namespace fulcrum

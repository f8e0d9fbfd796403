// Canaries over a real scheduler: the CPU's arms with planted faults, made-up kernel times, and a
// clock that stands still unless a test moves it.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/auditor.h"
#include "scheduler/scheduler.h"
#include "scheduler/shadow.h"
#include "tests/support/event.h"
#include "tests/support/fake_clock.h"
#include "tests/support/planted_backend.h"
#include "tests/support/random_weights.h"
#include "tests/support/recording_observer.h"
#include "tests/support/test_call.h"

namespace fulcrum {
namespace {

using test::FakeClock;
using test::PlantedArm;
using test::PlantedBackend;
using test::RecordingObserver;
using test::Submit;
using test::TestCall;
using ::testing::HasSubstr;

constexpr int64_t kN = 192, kK = 256;

class CanaryControlTest : public ::testing::Test {
 protected:
  CanaryControlTest() {
    auto loaded = store_.Load({.name = "models/m/shards/s",
                               .family = Family::kFfnDown,
                               .source = std::make_shared<test::MemoryWeight>(
                                   test::RandomFp8(kN, kK, test::WeightKind::kGaussian, 3)),
                               .device = "",
                               .expect_hash = ""});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    shard_ = *loaded;
    EXPECT_TRUE(levers_.Set({{"audit_rate", "0"}}, {}).ok());
  }
  ~CanaryControlTest() override { scheduler_.Drain(absl::InfiniteDuration()); }

  static CanarySpec Spec() {
    CanarySpec spec{.changes = {{"m16_tc", "all:one_pass"}}, .share = 0.5};
    spec.guards.min_samples = 20;
    return spec;
  }
  uint64_t MustStart(const CanarySpec& spec) {
    const auto started = control_.Start(spec, 0, false);
    EXPECT_TRUE(started.ok()) << started.status();
    return started.ok() ? started->id : 0;
  }
  // One call after another, each of the next of 40 clients; some are on either side.
  std::shared_ptr<TestCall> CallOnce(Policy policy = Policy::kBatchInvariant, int rows = 2) {
    auto call = std::make_shared<TestCall>(std::vector{shard_}, rows, 0.5f);
    call->client = "client-" + std::to_string(calls_++ % 40);
    call->policy = policy;
    EXPECT_TRUE(Submit(scheduler_, call).ok());
    EXPECT_TRUE(call->Await().ok()) << call->status;
    return call;
  }
  bool OnCanary(const TestCall& call) {
    return call.provenance.arms[0]->gate.lever != Lever::kAlwaysOpen;
  }
  // Runs calls until the canary ended. On a busy machine many of its batches run on the control
  // while the first ones wait for their check.
  void RunUntilEnded() {
    const absl::Time limit = absl::Now() + absl::Minutes(2);
    while (control_.Last()->ended == absl::InfiniteFuture() && absl::Now() < limit) CallOnce();
  }
  CanaryReport AwaitEnd() {
    const absl::Time limit = absl::Now() + absl::Minutes(2);
    for (;;) {
      CanaryReport report = *control_.Last();
      if (report.ended < absl::InfiniteFuture()) return report;
      if (absl::Now() > limit) {
        ADD_FAILURE() << "the canary goes on: " << report.evidence;
        return report;
      }
      std::this_thread::yield();
    }
  }

  std::shared_ptr<PlantedArm> plant_ = std::make_shared<PlantedArm>();
  PlantedBackend backend_{plant_};
  FakeClock clock_;
  LeverStore levers_{clock_};
  RecordingObserver observer_;
  CanaryControl control_{levers_, observer_, clock_, nullptr};
  ShardStore store_{{&backend_}, nullptr};
  std::shared_ptr<const Shard> shard_;
  Auditor auditor_{store_, control_, {.outputs_per_batch = 64, .scrub_interval = {}}};
  Shadow shadow_{control_, nullptr, {}};
  Scheduler scheduler_{{&backend_}, levers_, control_, {&auditor_, &shadow_}, clock_, {}};
  int calls_ = 0;
};

TEST_F(CanaryControlTest, EachClientHasOneSideAndEveryReplyNamesItsEpoch) {
  const uint64_t id = MustStart(Spec());
  const CanaryReport report = *control_.Last();
  EXPECT_EQ(report.id, id);
  std::map<std::string, bool> side;
  int on_canary = 0;
  for (int i = 0; i < 400; ++i) {
    const auto call = CallOnce();
    shadow_.Flush();  // so that no batch waits for its check
    const bool canary = OnCanary(*call);
    EXPECT_EQ(call->provenance.lever_epoch, canary ? report.epoch : report.control_epoch);
    const auto [known, fresh] = side.emplace(call->client, canary);
    EXPECT_EQ(known->second, canary) << call->client;
    on_canary += canary;
  }
  EXPECT_GT(on_canary, 100);
  EXPECT_LT(on_canary, 300);
  ASSERT_TRUE(control_.Abort(id, "me", "enough").ok());
  EXPECT_FALSE(OnCanary(*CallOnce()));
  EXPECT_EQ(levers_.History().back().cause, LeverCause::kAbort);
}

TEST_F(CanaryControlTest, CallsThatWaitedBeforeItBeganCountForNeitherSide) {
  std::vector<std::shared_ptr<TestCall>> calls;
  const auto submit = [&](int count) {
    for (int i = 0; i < count; ++i) {
      calls.push_back(std::make_shared<TestCall>(std::vector{shard_}, 32, 0.5f));  // a batch each
      calls.back()->client = "client-" + std::to_string(i);
      ASSERT_TRUE(Submit(scheduler_, calls.back()).ok());
    }
  };
  scheduler_.Pause();
  submit(40);
  MustStart(Spec());
  scheduler_.Resume();
  for (const auto& call : calls) ASSERT_TRUE(call->Await().ok());
  submit(40);
  scheduler_.Drain(absl::InfiniteDuration());  // what was answered is told
  for (const auto& call : calls) ASSERT_TRUE(call->Await().ok());
  const CanaryReport report = *control_.Last();
  EXPECT_GT(report.control_side.batches, 0);
  EXPECT_LT(report.control_side.batches, 40);  // of the clients that are on its side
  EXPECT_LE(report.control_side.batches + report.canary_side.batches, 40);
}

TEST_F(CanaryControlTest, ExactCallsKeepTheirBitsOnEitherSide) {
  const auto before = CallOnce(Policy::kExact)->outputs;
  MustStart(Spec());
  for (int i = 0; i < 80; ++i) {
    EXPECT_EQ(CallOnce(Policy::kExact)->outputs, before);
    CallOnce(Policy::kBatchInvariant);
  }
}

TEST_F(CanaryControlTest, ByBatchIsForFastestAlone) {
  CanarySpec spec = Spec();
  spec.unit = CanaryUnit::kBatch;
  MustStart(spec);
  int fastest = 0;
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(OnCanary(*CallOnce(Policy::kBatchInvariant, 8)));
    fastest += OnCanary(*CallOnce(Policy::kFastest, 8));  // few rows run exact whatever is open
    shadow_.Flush();
  }
  EXPECT_GT(fastest, 60);
  EXPECT_LT(fastest, 140);
}

TEST_F(CanaryControlTest, AWrongArmIsRevertedBeforeItServedTwoHundredRows) {
  plant_->wrong = true;
  MustStart(Spec());
  RunUntilEnded();
  const CanaryReport report = AwaitEnd();
  EXPECT_EQ(report.state, CanaryState::kReverted);
  EXPECT_THAT(report.evidence, HasSubstr("shadow checks failed"));
  EXPECT_LT(plant_->wrong_rows.load(), 200);
  EXPECT_GT(plant_->wrong_rows.load(), 0);
  EXPECT_FALSE(OnCanary(*CallOnce()));
  const auto history = levers_.History();
  EXPECT_EQ(history.back().cause, LeverCause::kRevert);
  EXPECT_EQ(history.back().evidence, report.evidence);
}

TEST_F(CanaryControlTest, NoBatchIsPickedForTheCanaryAfterTheCheckThatFailed) {
  plant_->wrong = true;
  MustStart(Spec());
  const std::shared_ptr<CanaryValve> valve = levers_.View().canary->valve;
  bool failed = false;
  for (int i = 0; i < 200; ++i) {
    const bool canary = OnCanary(*CallOnce());
    EXPECT_FALSE(failed && canary) << "call " << i;
    // A batch is offered to the check after its reply; its rows count as ungraded before that.
    while (valve->ungraded_rows > 0) std::this_thread::yield();
    failed |= canary;
  }
  EXPECT_TRUE(failed);
}

TEST_F(CanaryControlTest, RowsThatWaitForTheirCheckBoundWhatAWrongArmServes) {
  // The checks stand still: whatever comes, the candidate gets no more than its allowance.
  test::Event checked;
  class Held : public Observer {
   public:
    Held(Observer& to, test::Event& until) : next(to), gate(until) {}
    void OnShadow(const ShadowEvent& event) override {
      gate.WaitForNotification();
      next.OnShadow(event);
    }
    Observer& next;
    test::Event& gate;
  } held(control_, checked);
  Shadow shadow(held, nullptr, {});
  Scheduler scheduler({&backend_}, levers_, control_, {nullptr, &shadow}, clock_, {});
  plant_->wrong = true;
  MustStart(Spec());
  for (int i = 0; i < 2000; ++i) {
    auto call = std::make_shared<TestCall>(std::vector{shard_}, 1 + i % 32, 0.5f);
    call->client = "client-" + std::to_string(i % 40);
    ASSERT_TRUE(Submit(scheduler, call).ok());
    ASSERT_TRUE(call->Await().ok());
  }
  EXPECT_LT(plant_->wrong_rows.load(), 200);
  EXPECT_GE(plant_->wrong_rows.load(), CanaryValve::kMaxUngradedRows);
  checked.Notify();
  EXPECT_EQ(AwaitEnd().state, CanaryState::kReverted);
  scheduler.Drain(absl::InfiniteDuration());
}

TEST_F(CanaryControlTest, OneWrongBitIsFoundByTheAuditAndReverts) {
  ASSERT_TRUE(levers_.Set({{"audit_rate", "1"}}, {}).ok());
  plant_->one_bit = true;  // within every budget
  MustStart(Spec());
  RunUntilEnded();
  const CanaryReport report = AwaitEnd();
  EXPECT_EQ(report.state, CanaryState::kReverted);
  EXPECT_THAT(report.evidence, HasSubstr("wrong bits found by audit"));
  auditor_.Flush();
  EXPECT_FALSE(observer_.totals().incidents.empty());
}

TEST_F(CanaryControlTest, AFivePercentSlowerArmIsRevertedAndAnEqualOneIsNot) {
  ASSERT_TRUE(levers_.Set({{"shadow_rate", "0"}}, {}).ok());
  plant_->slower = 1.05;
  MustStart(Spec());
  RunUntilEnded();
  const CanaryReport slow = AwaitEnd();
  EXPECT_EQ(slow.state, CanaryState::kReverted);
  EXPECT_THAT(slow.evidence, HasSubstr("kernel p50 of ffn_down decode, 2 to 2 rows"));
  ASSERT_EQ(slow.rows.size(), 1u);
  EXPECT_GT(slow.rows[0].canary_p50, slow.rows[0].control_p50);

  plant_->slower = 1.0;
  MustStart(Spec());
  for (int i = 0; i < 3000; ++i) CallOnce();
  EXPECT_EQ(control_.Last()->state, CanaryState::kRunning) << control_.Last()->evidence;
}

TEST_F(CanaryControlTest, FailedLaunchesRevert) {
  plant_->fails = true;
  MustStart(Spec());
  for (int i = 0; i < 1000 && control_.Last()->ended == absl::InfiniteFuture(); ++i) {
    auto call = std::make_shared<TestCall>(std::vector{shard_}, 1, 0.5f);
    call->client = "client-" + std::to_string(i % 40);
    ASSERT_TRUE(Submit(scheduler_, call).ok());
    call->Await();
  }
  const CanaryReport report = AwaitEnd();
  EXPECT_EQ(report.state, CanaryState::kReverted);
  EXPECT_THAT(report.evidence, HasSubstr("1 launches failed (limit 0): a planted fault"));
}

TEST_F(CanaryControlTest, PromotesItselfWhenItsTimeIsOver) {
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

TEST_F(CanaryControlTest, HoldsUntilAnOperatorPromotes) {
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

TEST_F(CanaryControlTest, ALostOperatorReverts) {
  CanarySpec spec = Spec();
  spec.guards.heartbeat = absl::Seconds(10);
  const uint64_t id = MustStart(spec);
  clock_.Advance(absl::Seconds(9));
  ASSERT_TRUE(control_.Heartbeat(id).ok());
  clock_.AwaitSleeper(clock_.Now() + absl::Seconds(10) + absl::Milliseconds(1));
  clock_.Advance(absl::Seconds(11));
  EXPECT_THAT(AwaitEnd().evidence, HasSubstr("no heartbeat for 10s"));
  EXPECT_TRUE(absl::IsFailedPrecondition(control_.Heartbeat(id).status()));
}

// Flips, canaries, promotions and aborts while clients call: what a reply names is what it got, and
// EXACT never differs by a bit.
TEST_F(CanaryControlTest, UnderLoadEveryReplysArmIsOpenInItsEpochAndExactKeepsItsBits) {
  ASSERT_TRUE(levers_.Set({{"audit_rate", "0.2"}, {"shadow_rate", "0.2"}}, {}).ok());
  const auto exact = CallOnce(Policy::kExact, 1)->outputs;
  absl::Mutex mu;
  std::map<uint64_t, LeverSet> epochs;  // every set of values that there was
  const auto note = [&] {
    const LeverView view = levers_.View();
    absl::MutexLock lock(&mu);
    epochs[view.live->epoch] = view.live->levers;
    if (view.canary != nullptr) {
      epochs[view.canary->candidate->epoch] = view.canary->candidate->levers;
    }
  };
  note();
  std::atomic<bool> stop{false};
  std::atomic<int64_t> answered{0};
  std::vector<std::vector<std::shared_ptr<TestCall>>> done(2);
  std::vector<std::thread> clients;
  for (size_t c = 0; c < done.size(); ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; !stop || i < 100; ++i) {
        auto call = std::make_shared<TestCall>(std::vector{shard_}, 1, 0.5f);
        call->client = std::to_string(c) + "-" + std::to_string(i % 8);
        call->policy = static_cast<Policy>(i % 3);
        ASSERT_TRUE(Submit(scheduler_, call).ok());
        ASSERT_TRUE(call->Await().ok()) << call->status;
        ++answered;
        done[c].push_back(std::move(call));
      }
    });
  }
  for (int round = 0; round < 60; ++round) {
    const int64_t from = answered;
    if (round % 3 == 0) {
      ASSERT_TRUE(levers_.Set({{"m16_tc", round % 2 ? "off" : "all:m16"}}, {}).ok());
    }
    note();
    CanarySpec spec = Spec();
    spec.changes[0].value = round % 2 ? "ffn_down:one_pass" : "all:m16_n64";
    spec.unit = kAllCanaryUnits[static_cast<size_t>(round) % 3];
    spec.guards.min_samples = 1;
    const auto started = control_.Start(spec, 0, false);
    note();
    while (answered < from + 40) std::this_thread::yield();
    ASSERT_TRUE(levers_.Set({{"max_batch_rows", std::to_string(16 + round % 2)}}, {}).ok());
    note();
    while (answered < from + 60) std::this_thread::yield();
    if (started.ok()) {
      if (!control_.Promote(started->id, "me", "").ok()) {
        (void)control_.Abort(started->id, "me", "");
      }
    }
    note();
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  int64_t blockfold = 0;
  for (const auto& calls : done) {
    for (const auto& call : calls) {
      ASSERT_TRUE(epochs.contains(call->provenance.lever_epoch)) << call->provenance.lever_epoch;
      const Arm& arm = *call->provenance.arms[0];
      EXPECT_TRUE(arm.gate.Open(epochs[call->provenance.lever_epoch], Family::kFfnDown));
      blockfold += arm.numerics == NumericsClass::kBlockfold;
      if (call->policy == Policy::kExact) {
        EXPECT_EQ(call->outputs, exact);
      }
    }
  }
  EXPECT_GT(blockfold, 0);
  auditor_.Flush();
  shadow_.Flush();
  EXPECT_TRUE(observer_.totals().incidents.empty());
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

TEST_F(CanaryControlTest, AnEndThatCannotBeKeptIsSaidAndWrittenAsSoonAsItCan) {
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

TEST_F(CanaryControlTest, APromotionThatCannotBeKeptIsToldOnce) {
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

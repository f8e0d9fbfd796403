// How fast a breach takes effect, on the real clock under concurrent callers: no batch is picked
// for the candidate once the breach is reported, those that run then are the last, and the revert
// is an event within 100 ms. Order is held against stamps that say which came first, so it is
// strict however busy the machine is; the time is that of the best of a few attempts, since a
// thread of a busy machine may be kept waiting for longer than that by others.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/auditor.h"
#include "scheduler/canary_control.h"
#include "scheduler/scheduler.h"
#include "scheduler/shadow.h"
#include "tests/support/planted_backend.h"
#include "tests/support/random_weights.h"
#include "tests/support/test_call.h"

namespace fulcrum {
namespace {

using test::PlantedArm;
using ::testing::HasSubstr;

constexpr int64_t kN = 192, kK = 256;
constexpr int kCallers = 8;  // more than slots: some calls wait while the breach is found
constexpr absl::Duration kLimit = absl::Milliseconds(100);
constexpr int kAttempts = 3;

// In front of the canary's control: stamps what passes.
class Stamps : public Observer {
 public:
  void OnBatch(const BatchEvent& event) override {
    if (event.candidate) {
      absl::MutexLock lock(&mu_);
      candidates_.push_back({event.picked, absl::Now()});
    }
    Pass([&] { next->OnBatch(event); });
  }
  void OnShadow(const ShadowEvent& event) override {
    Pass([&] { next->OnShadow(event); });
  }
  void OnIncident(const Incident& incident) override {
    Pass([&] { next->OnIncident(incident); });
  }

  struct Candidate {
    absl::Time picked, ran;  // `ran`: when its launch was over
  };
  std::vector<Candidate> candidates() const {
    absl::MutexLock lock(&mu_);
    return candidates_;
  }
  // The breach: what had it found was about to be passed on, and had been.
  absl::Time found() const {
    absl::MutexLock lock(&mu_);
    return found_;
  }
  absl::Time closed() const {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

  Observer* next = nullptr;                       // set before anything passes
  std::shared_ptr<const CanaryValve> valve = {};  // set before calls

 private:
  void Pass(const std::function<void()>& pass) {
    const absl::Time before = absl::Now();
    const bool open = valve != nullptr && !valve->closed;
    pass();
    if (!open || !valve->closed) return;
    // Reports that passed at the same time saw it turn too: the breach was found by the first.
    absl::MutexLock lock(&mu_);
    found_ = std::min(found_, before);
    closed_ = std::min(closed_, absl::Now());
  }

  mutable absl::Mutex mu_;
  std::vector<Candidate> candidates_ ABSL_GUARDED_BY(mu_);
  absl::Time found_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::Time closed_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
};

// Keeps the control's thread, which makes a breach an event, from going on once `late` says so:
// what holds until then is the valve's doing alone.
class LateClock : public Clock {
 public:
  void Wait(absl::Mutex& mu, absl::CondVar& cv, absl::Time until) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Clock::Wait(mu, cv, until);
    mu.Unlock();
    while (late()) std::this_thread::yield();
    mu.Lock();
  }
  std::function<bool()> late = [] { return false; };  // set before anything waits
};

struct Planted {
  const char* name;
  void (*plant)(PlantedArm&);
  LeverChange before;    // a lever set before the canary
  const char* evidence;  // of the revert
};
void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

struct Times {
  absl::Duration to_last_batch, to_event;
  absl::Duration slowest() const { return std::max(to_last_batch, to_event); }
};

class CanaryRevertTest : public ::testing::TestWithParam<Planted> {};

// One node from start to revert, whose thread begins to act on the breach when `late` further calls
// were answered. Asserts the order, returns the times.
void Attempt(const Planted& planted, int late, Times* times) {
  auto plant = std::make_shared<PlantedArm>();
  test::PlantedBackend backend(plant);
  const Clock clock;
  LateClock control_clock;
  std::atomic<CanaryValve*> valve{nullptr};
  std::atomic<int> answered_since{0};  // the valve closed
  std::atomic<bool> gave_up{false};
  control_clock.late = [&] {
    return valve != nullptr && valve.load()->closed && answered_since < late && !gave_up;
  };
  LeverStore levers(clock);
  ASSERT_TRUE(levers.Set({{"audit_rate", "0"}}, {}).ok());
  ASSERT_TRUE(levers.Set({planted.before}, {}).ok());
  Observer nobody;
  CanaryControl control(levers, nobody, control_clock, nullptr);
  Stamps stamps;
  stamps.next = &control;
  ShardStore store({&backend}, nullptr);
  const auto shard = store.Load({.name = "models/m/shards/s",
                                 .family = Family::kFfnDown,
                                 .source = std::make_shared<test::MemoryWeight>(
                                     test::RandomFp8(kN, kK, test::WeightKind::kGaussian, 3)),
                                 .device = "",
                                 .expect_hash = ""});
  ASSERT_TRUE(shard.ok()) << shard.status();
  Auditor auditor(store, stamps, {.outputs_per_batch = 64, .scrub_interval = {}});
  Shadow shadow(stamps, nullptr, {});
  const int slots = backend.preferred_slots();
  Scheduler scheduler({&backend}, levers, stamps, {&auditor, &shadow}, clock, {});

  planted.plant(*plant);
  CanarySpec spec{.changes = {{"m16_tc", "all:one_pass"}}, .share = 0.5};
  const auto started = control.Start(spec, 0, false);
  ASSERT_TRUE(started.ok()) << started.status();
  const std::shared_ptr<CanaryValve> shared_valve = levers.View().canary->valve;
  stamps.valve = shared_valve;
  valve = shared_valve.get();

  struct Revert {
    absl::Mutex mu;
    std::optional<LeverEvent> event ABSL_GUARDED_BY(mu);
    absl::Time told ABSL_GUARDED_BY(mu);
  } revert;
  const auto subscription = levers.Subscribe([&](const LeverEvent& event) {
    absl::MutexLock lock(&revert.mu);
    revert.event = event;
    revert.told = absl::Now();
  });
  const auto reverted = [&] {
    absl::MutexLock lock(&revert.mu);
    return revert.event.has_value();
  };

  // Callers, each of several clients, until the revert is told and a while beyond.
  std::vector<std::thread> callers;
  const absl::Time patience = absl::Now() + absl::Minutes(2);
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] {
      for (int i = 0, left = 50; left > 0 && !gave_up; ++i) {
        const bool after = reverted();
        left -= after;
        std::vector<std::shared_ptr<test::TestCall>> burst;
        for (int n = 0; n < 4; ++n) {
          auto call = std::make_shared<test::TestCall>(std::vector{*shard}, 2, 0.5f);
          call->client = std::to_string(c) + "-" + std::to_string((i + n) % 16);
          ASSERT_TRUE(Submit(scheduler, call).ok());
          burst.push_back(std::move(call));
        }
        for (const auto& call : burst) {
          const absl::Status& status = call->Await();
          answered_since += shared_valve->closed;
          if (!after) continue;
          EXPECT_TRUE(status.ok()) << status;
          EXPECT_NE(call->provenance.lever_epoch, started->epoch);
        }
        if (absl::Now() > patience) gave_up = true;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  scheduler.Drain(absl::InfiniteDuration());
  shadow.Flush();  // the thread that reported the breach has stamped it then
  auditor.Flush();
  ASSERT_FALSE(gave_up) << "no revert: " << control.Last()->evidence;

  absl::MutexLock lock(&revert.mu);
  EXPECT_EQ(revert.event->cause, LeverCause::kRevert);
  EXPECT_THAT(revert.event->evidence, HasSubstr(planted.evidence));
  const absl::Time found = stamps.found(), closed = stamps.closed();
  ASSERT_LT(found, absl::InfiniteFuture());
  EXPECT_LE(found, revert.event->time);

  absl::Time last = absl::InfinitePast();
  int running = 0;  // when the breach was reported
  const std::vector<Stamps::Candidate> candidates = stamps.candidates();
  EXPECT_FALSE(candidates.empty());
  for (const Stamps::Candidate& batch : candidates) {
    EXPECT_LE(batch.picked, closed) << "picked for the candidate after the breach was reported";
    EXPECT_LE(batch.picked, revert.event->time) << "picked for the candidate after the revert";
    running += batch.ran > closed;
    last = std::max(last, batch.ran);
  }
  EXPECT_LE(running, slots) << "one batch boundary: what runs is what the slots had";
  *times = {.to_last_batch = std::max(last - found, absl::ZeroDuration()),
            .to_event = revert.told - found};
}

TEST_P(CanaryRevertTest, WithinAHundredMillisecondsAndOneBatchBoundary) {
  std::optional<Times> best;
  for (int i = 0; i < kAttempts; ++i) {
    Times times;
    Attempt(GetParam(), /*late=*/0, &times);
    if (HasFailure()) return;
    if (!best.has_value() || times.slowest() < best->slowest()) best = times;
    if (best->slowest() <= kLimit) break;
  }
  EXPECT_LE(best->to_last_batch, kLimit);
  EXPECT_LE(best->to_event, kLimit);
  RecordProperty("to_last_batch_us",
                 static_cast<int>(absl::ToInt64Microseconds(best->to_last_batch)));
  RecordProperty("to_event_us", static_cast<int>(absl::ToInt64Microseconds(best->to_event)));
}

TEST_P(CanaryRevertTest, UntilItIsAnEventTheLiveLeversRunAllTheSame) {
  for (int i = 0; i < 5 && !HasFailure(); ++i) {
    Times ignored;
    Attempt(GetParam(), /*late=*/100, &ignored);
  }
}

INSTANTIATE_TEST_SUITE_P(Breaches, CanaryRevertTest,
                         ::testing::Values(Planted{"wrong",
                                                   [](PlantedArm& arm) { arm.wrong = true; },
                                                   {"shadow_rate", "0"},
                                                   "shadow checks failed"},
                                           Planted{"one_bit",
                                                   [](PlantedArm& arm) { arm.one_bit = true; },
                                                   {"audit_rate", "1"},
                                                   "wrong bits found by audit"},
                                           Planted{"fails",
                                                   [](PlantedArm& arm) { arm.fails = true; },
                                                   {"shadow_rate", "0"},
                                                   "launches failed"},
                                           Planted{"slow",
                                                   [](PlantedArm& arm) { arm.slower = 2; },
                                                   {"shadow_rate", "0"},
                                                   "kernel p"}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace fulcrum

// Canaries over a real scheduler: the CPU's arms with planted faults, made-up kernel times, and a
// clock that stands still unless a test moves it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "scheduler/auditor.h"
#include "scheduler/canary_control.h"
#include "scheduler/scheduler.h"
#include "scheduler/shadow.h"
#include "tests/support/fake_clock.h"
#include "tests/support/planted_backend.h"
#include "tests/support/random_weights.h"
#include "tests/support/recording_observer.h"
#include "tests/support/test_call.h"

namespace fulcrum::test {

class CanaryRig : public ::testing::Test {
 protected:
  CanaryRig() {
    auto loaded = store_.Load(
        {.name = "models/m/shards/s",
         .family = Family::kFfnDown,
         .source = std::make_shared<MemoryWeight>(RandomFp8(192, 256, WeightKind::kGaussian, 3)),
         .device = "",
         .expect_hash = ""});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    shard_ = *loaded;
    EXPECT_TRUE(levers_.Set({{"audit_rate", "0"}}, {}).ok());
  }
  ~CanaryRig() override { scheduler_.Drain(absl::InfiniteDuration()); }

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
  ShardStore store_{{&backend_}, [this](const ShardInfo& info) { control_.OnShard(info); }};
  std::shared_ptr<const Shard> shard_;
  Auditor auditor_{store_, control_, {.outputs_per_batch = 64, .scrub_interval = {}}};
  Shadow shadow_{control_, nullptr, {}};
  Scheduler scheduler_{{&backend_}, levers_, control_, {&auditor_, &shadow_}, clock_, {}};
  int calls_ = 0;
};

}  // namespace fulcrum::test

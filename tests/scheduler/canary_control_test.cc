// Which side of a canary a call is on, and what every reply says of it. CanaryRig: a real
// scheduler.
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

#include "tests/support/canary_rig.h"

namespace fulcrum {
namespace {

using test::Submit;
using test::TestCall;

using CanaryControlTest = test::CanaryRig;

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

}  // namespace
}  // namespace fulcrum

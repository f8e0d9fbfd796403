// The scheduler under real threads: cancels at random points, shards swapped and levers flipped
// under load. What each reply claims must agree with its bits.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/shard_store.h"
#include "tests/support/node_fixture.h"

namespace fulcrum {
namespace {

using test::FakeBackend;
using test::MakeShard;
using test::Submit;
using test::TaggedWeight;
using test::TestCall;

class SchedulerStress : public test::NodeTest {};

TEST_F(SchedulerStress, TenThousandCancelsAtRandomPointsLeaveNothingBehind) {
  Start({.slots_per_device = 2});
  constexpr int kCalls = 10000;
  std::vector<std::shared_ptr<TestCall>> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(Call(1 + i % 4, 1, std::to_string(i % 7)));
  std::atomic<int> submitted{0};
  std::atomic<int> refused{0};
  std::thread canceller([&] {
    std::mt19937 random(3);
    for (int i = 0; i < kCalls;) {
      const int limit = submitted.load();
      for (; i < limit; ++i) {
        scheduler_->Cancel(calls[i].get());
        if (random() % 3 == 0) scheduler_->Cancel(calls[random() % limit].get());
      }
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < kCalls; ++i) {
    if (!Submit(*scheduler_, calls[i]).ok()) ++refused;
    submitted = i + 1;
  }
  canceller.join();
  scheduler_->Drain(absl::InfiniteDuration());
  EXPECT_EQ(scheduler_->queued_rows(), 0);
  EXPECT_EQ(scheduler_->inflight_calls(), 0);
  const auto totals = observer_.totals();
  EXPECT_EQ(totals.queue_rows, 0);
  EXPECT_EQ(totals.queue_bytes, 0);
  int ran = 0, cancelled = 0, never = 0;
  for (const auto& call : calls) {
    if (call->completions == 0) {
      ++never;
    } else if (call->status.ok()) {
      ++ran;
      EXPECT_EQ(call->Output(), 6);
    } else {
      ++cancelled;
      EXPECT_TRUE(absl::IsCancelled(call->status)) << call->status;
      EXPECT_EQ(call->gathers, 0);
    }
  }
  EXPECT_EQ(never, refused);
  EXPECT_EQ(ran + cancelled + never, kCalls);
  EXPECT_EQ(totals.calls, ran);
  EXPECT_EQ(totals.rejects.contains(RejectReason::kCancelled)
                ? totals.rejects.at(RejectReason::kCancelled)
                : 0,
            cancelled);
}

TEST_F(SchedulerStress, CancelMeetsACallInEveryState) {
  Start();
  // In the gather, in the launch and in the completion of the call itself, from another thread.
  for (int state = 0; state < 3; ++state) {
    auto call = Call(1);
    const auto cancel = [&, raw = call.get()] {
      std::thread([&] { scheduler_->Cancel(raw); }).join();
    };
    if (state == 0) call->on_gather = cancel;
    if (state == 2) call->on_complete = cancel;
    if (state == 1) {
      const size_t launches = backend_.ran().size();
      backend_.Hold();
      Submitted(call);
      backend_.AwaitLaunches(launches + 1);
      cancel();
      backend_.Release();
    } else {
      Submitted(call);
    }
    EXPECT_TRUE(call->Await().ok()) << state;
  }
  // Cancel against pick, over and over: one of the two has the call, never both.
  for (int i = 0; i < 2000; ++i) {
    auto call = Call(1);
    std::thread canceller([&] { scheduler_->Cancel(call.get()); });
    Submitted(call);
    canceller.join();
    const absl::Status& status = call->Await();
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    EXPECT_EQ(call->gathers, status.ok() ? 1 : 0);
  }
}

TEST_F(SchedulerStress, AShardSwappedUnderLoadAnswersWithTheVersionItNames) {
  ShardStore store({&backend_}, nullptr);
  const auto request = [](int tag) {
    return LoadRequest{.name = "s",
                       .family = Family::kFfnDown,
                       .source = TaggedWeight(tag),
                       .device = "",
                       .expect_hash = ""};
  };
  ASSERT_TRUE(store.Load(request(1)).ok());
  Start({.slots_per_device = 2});
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&, c] {
      while (!stop) {
        std::vector<std::shared_ptr<TestCall>> calls;
        for (int i = 0; i < 8; ++i) {
          auto call = std::make_shared<TestCall>(std::vector{*store.Find("s")}, 1 + i % 3, 2.0f);
          call->client = std::to_string(c);
          ASSERT_TRUE(Submit(*scheduler_, call).ok());
          calls.push_back(std::move(call));
        }
        for (const auto& call : calls) {
          ASSERT_TRUE(call->Await().ok()) << call->status;
          // Version v was loaded with tag v % 100 + 1.
          EXPECT_EQ(call->Output(), 2 + (call->shards[0]->version - 1) % 100 + 1);
          ++answered;
        }
      }
    });
  }
  for (int swap = 1; swap <= 200; ++swap) {
    ASSERT_TRUE(store.Replace(request(swap % 100 + 1)).ok());
    // Load meets every version, however fast the swaps are.
    for (const int from = answered; answered < from + 4;) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ((*store.Find("s"))->version, 201u);
  scheduler_->Drain(absl::InfiniteDuration());
  EXPECT_TRUE(store.Unload("s", absl::InfiniteDuration()).ok());
}

TEST_F(SchedulerStress, LeversFlippedUnderLoadAreTheOnesTheReplyNames) {
  Start({.slots_per_device = 2});
  const std::vector<std::string> values = {"off", "ffn_down:one_pass", "ffn_down:m16",
                                           "ffn_down:m16_n64"};
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::vector<std::vector<std::shared_ptr<TestCall>>> done(3);
  std::vector<std::thread> clients;
  for (size_t c = 0; c < done.size(); ++c) {
    clients.emplace_back([&, c] {
      while (!stop) {
        std::vector<std::shared_ptr<TestCall>> calls;
        for (int i = 0; i < 4; ++i) {
          auto call = std::make_shared<TestCall>(std::vector{shard_}, 1 + i * 3, 2.0f);
          call->policy = static_cast<Policy>(c);
          call->client = std::to_string(c);
          ASSERT_TRUE(Submit(*scheduler_, call).ok());
          calls.push_back(std::move(call));
        }
        for (auto& call : calls) {
          ASSERT_TRUE(call->Await().ok()) << call->status;
          done[c].push_back(std::move(call));
          ++answered;
        }
      }
    });
  }
  for (int flip = 1; flip <= 100; ++flip) {
    SetLever("m16_tc", values[static_cast<size_t>(flip) % values.size()]);
    for (const int from = answered; answered < from + 16;) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& client : clients) client.join();

  std::map<uint64_t, LeverSet> by_epoch;
  by_epoch[1] = LeverSet();
  for (const LeverEvent& event : levers_.History()) {
    LeverSet levers;
    ASSERT_TRUE(levers.Set(event.lever, event.to).ok());
    by_epoch[event.epoch] = levers;
  }
  std::map<std::string, int> seen;
  for (size_t c = 0; c < done.size(); ++c) {
    for (const auto& call : done[c]) {
      const Arm& arm = *call->provenance.arms[0];
      const LeverSet& levers = by_epoch.at(call->provenance.lever_epoch);
      EXPECT_TRUE(arm.gate.Open(levers, Family::kFfnDown)) << arm.name;
      const bool exact = arm.numerics == NumericsClass::kExact;
      EXPECT_EQ(call->Output(), 2 + 5 + (exact ? 0 : FakeBackend::kNotExact));
      if (call->policy == Policy::kExact) {
        EXPECT_TRUE(exact);
      }
      if (call->policy == Policy::kBatchInvariant) {
        EXPECT_EQ(exact, levers.Print(Lever::kM16Tc) == "off");
      }
      ++seen[std::string(arm.name)];
    }
  }
  for (const char* arm : {"w8a16_gemm_m32", "w8a16_gemm_m16", "w8a16_gemm_m16_n64"}) {
    EXPECT_GT(seen[arm], 0) << arm;
  }
}

}  // namespace
}  // namespace fulcrum

// What waits and what goes next, without threads: fairness inside a lane, turns between lanes,
// classes that may share a batch.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/device_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/support/fake_backend.h"
#include "tests/support/test_call.h"

namespace fulcrum {
namespace {

using test::FakeBackend;
using test::MakeShard;
using test::TestCall;

const absl::Time kStart = absl::FromUnixSeconds(100);

class DeviceQueueTest : public ::testing::Test {
 protected:
  Waiting* Add(const std::shared_ptr<const Shard>& shard, int rows, std::string client = "c",
               Policy policy = Policy::kBatchInvariant) {
    auto call = std::make_shared<TestCall>(std::vector{shard}, rows);
    call->client = std::move(client);
    call->policy = policy;
    call->id = std::to_string(seq_);
    call->deadline = deadline_;
    return queue_.Add(call, now_, seq_++);
  }
  // "client:id client:id ..." of the next batch, with its reason.
  std::string Next() {
    Batch batch;
    const absl::Time look_again = queue_.Pick({.live = levers_}, now_, rules_, batch);
    if (batch.calls.empty()) {
      return look_again == absl::InfiniteFuture() ? "nothing" : "hold";
    }
    std::string text(Name(batch.close_reason));
    for (const TakenCall& taken : batch.calls) text += " " + taken.call->client + taken.call->id;
    return text;
  }
  void SetLever(std::string_view lever, std::string_view value) {
    auto next = std::make_shared<LeverSnapshot>(*levers_);
    ASSERT_TRUE(next->levers.Set(lever, value).ok());
    ++next->epoch;
    levers_ = next;
  }

  FakeBackend backend_;
  std::shared_ptr<const Shard> a_ = MakeShard(backend_, "a", 1), b_ = MakeShard(backend_, "b", 2);
  std::shared_ptr<const LeverSnapshot> levers_ = std::make_shared<LeverSnapshot>();
  DeviceQueue::Rules rules_{.max_prefill_rows = 100, .max_lane_wait = absl::Milliseconds(50)};
  absl::Time now_ = kStart, deadline_ = absl::InfiniteFuture();
  uint64_t seq_ = 1;
  DeviceQueue queue_;
};

TEST_F(DeviceQueueTest, ClientsShareALaneByRows) {
  for (int i = 0; i < 20; ++i) Add(a_, 4, "flood");  // 1..20
  for (int i = 0; i < 4; ++i) Add(a_, 1, "x");       // 21..24
  Add(a_, 8, "y");                                   // 25
  SetLever("max_batch_rows", "16");
  EXPECT_EQ(Next(), "full flood1 x21 y25 x22 x23 x24");  // 4, 8 and 4 rows
  EXPECT_EQ(Next(), "full flood2 flood3 flood4 flood5");
  EXPECT_EQ(Next(), "full flood6 flood7 flood8 flood9");
}

TEST_F(DeviceQueueTest, ConnectionsShareTheirClientsPartAndNoMore) {
  SetLever("max_batch_rows", "4");
  const auto add = [this](const char* client, uint64_t connection, int rows) {
    auto call = std::make_shared<TestCall>(std::vector{a_}, rows);
    call->client = client;
    call->connection = connection;
    call->id = std::to_string(connection);
    queue_.Add(call, now_, seq_++);
  };
  // Ten connections of one address, of which the first sends most, beside another client.
  for (int i = 0; i < 40; ++i) add("p", 1, 2);
  for (uint64_t connection = 2; connection <= 10; ++connection) add("p", connection, 2);
  for (int i = 0; i < 20; ++i) add("x", 0, 2);
  std::map<std::string, int> rows;
  std::vector<std::string> order;
  for (int i = 0; i < 20; ++i) {
    Batch batch;
    queue_.Pick({.live = levers_}, now_, rules_, batch);
    for (const TakenCall& taken : batch.calls) {
      rows[taken.call->client] += taken.call->rows;
      if (taken.call->client == "p") order.push_back(taken.call->id);
    }
  }
  EXPECT_EQ(rows["p"], rows["x"]);  // ten connections are one client
  ASSERT_GE(order.size(), 12u);
  // No connection waits behind the 39 further calls of the first.
  for (const char* id : {"2", "3", "4", "5", "6", "7", "8", "9", "10"}) {
    EXPECT_LT(std::find(order.begin(), order.end(), id) - order.begin(), 11) << id;
  }
}

TEST_F(DeviceQueueTest, AConnectionsCallsKeepTheirOrderAndAPauseEarnsItNoTurn) {
  SetLever("max_batch_rows", "1");
  const auto add = [this](uint64_t connection) {
    auto call = std::make_shared<TestCall>(std::vector{a_}, 1);
    call->connection = connection;
    call->id = std::to_string(seq_);
    queue_.Add(call, now_, seq_++);
  };
  for (int i = 0; i < 6; ++i) add(7);  // 1..6
  EXPECT_EQ(Next(), "full client1");
  EXPECT_EQ(Next(), "full client2");
  for (int i = 0; i < 3; ++i) add(8);  // 7..9
  for (const int id : {7, 3, 8, 4, 9, 5, 6}) {
    EXPECT_EQ(Next(), "full client" + std::to_string(id));
  }
  EXPECT_EQ(Next(), "nothing");
}

TEST_F(DeviceQueueTest, APauseEarnsNoCredit) {
  for (int i = 0; i < 10; ++i) Add(a_, 8, "busy");
  SetLever("max_batch_rows", "8");
  for (int i = 0; i < 5; ++i) Next();
  for (int i = 0; i < 5; ++i) Add(a_, 8, "late");  // 11..15
  EXPECT_EQ(Next(), "full late11");
  EXPECT_EQ(Next(), "full busy6");
  EXPECT_EQ(Next(), "full late12");
}

TEST_F(DeviceQueueTest, ACallIsNeverSplitAndALargeOneHasItsTurn) {
  SetLever("max_batch_rows", "8");
  Add(a_, 6, "x");   // 1
  Add(a_, 32, "y");  // 2: more than the lever's value, alone
  Add(a_, 2, "z");   // 3
  EXPECT_EQ(Next(), "full x1 z3");
  EXPECT_EQ(Next(), "full y2");
  EXPECT_EQ(Next(), "nothing");
}

TEST_F(DeviceQueueTest, OnlyEqualClassesShareABatchAndAClientKeepsItsOrder) {
  SetLever("m16_tc", "all:m16");
  Add(a_, 1, "x", Policy::kBatchInvariant);  // 1: mma
  Add(a_, 1, "y", Policy::kExact);           // 2
  Add(a_, 1, "x", Policy::kExact);           // 3
  Add(a_, 1, "x", Policy::kBatchInvariant);  // 4: behind 3, so not with 1
  Add(a_, 1, "z", Policy::kBatchInvariant);  // 5
  EXPECT_EQ(Next(), "device_idle x1 z5");
  EXPECT_EQ(Next(), "device_idle y2 x3");
  EXPECT_EQ(Next(), "device_idle x4");
  // Levers closed: all three policies mean exact.
  SetLever("m16_tc", "off");
  Add(a_, 1, "x", Policy::kBatchInvariant);
  Add(a_, 1, "y", Policy::kExact);
  Add(a_, 1, "z", Policy::kFastest);
  EXPECT_EQ(Next(), "device_idle x6 y7 z8");
}

TEST_F(DeviceQueueTest, ALeverFlipRegroupsWhatAlreadyWaits) {
  SetLever("m16_tc", "all:m16");
  Add(a_, 1, "x", Policy::kBatchInvariant);
  Add(a_, 1, "y", Policy::kExact);
  SetLever("m16_tc", "off");
  EXPECT_EQ(Next(), "device_idle x1 y2");
}

TEST_F(DeviceQueueTest, LanesTakeTurnsUnderAFlood) {
  for (int i = 0; i < 200; ++i) Add(a_, 8, "flood");
  for (int i = 0; i < 5; ++i) {
    now_ += absl::Milliseconds(1);
    Add(b_, 1, "other");
    const int first = 4 * i + 1;
    EXPECT_EQ(Next(), absl::StrFormat("full flood%d flood%d flood%d flood%d", first, first + 1,
                                      first + 2, first + 3));
    EXPECT_EQ(Next(), "device_idle other" + std::to_string(201 + i));
  }
}

TEST_F(DeviceQueueTest, EarlierDeadlinesGoFirstUntilALaneIsOverdue) {
  Add(a_, 1, "patient");
  now_ += absl::Milliseconds(10);
  deadline_ = kStart + absl::Seconds(1);
  Add(b_, 1, "urgent");
  EXPECT_EQ(Next(), "device_idle urgent2");
  now_ = kStart + absl::Milliseconds(51);
  Add(b_, 1, "urgent");
  EXPECT_EQ(Next(), "device_idle patient1");
  EXPECT_EQ(Next(), "device_idle urgent3");
}

TEST_F(DeviceQueueTest, AWindowHoldsAndALeverChangeEndsIt) {
  SetLever("coalesce_window_us", "1000");
  Add(a_, 1);
  EXPECT_EQ(Next(), "hold");
  SetLever("audit_rate", "0.5");
  EXPECT_EQ(Next(), "lever_change c1");
  Add(a_, 1);
  EXPECT_EQ(Next(), "hold");
  now_ += absl::Milliseconds(1);
  Add(a_, 1);
  EXPECT_EQ(Next(), "window c2 c3");
  // What was held and then cancelled leaves nothing behind.
  Waiting* held = Add(a_, 1);
  EXPECT_EQ(Next(), "hold");
  queue_.Remove(held);
  EXPECT_TRUE(queue_.empty());
  SetLever("audit_rate", "0.25");
  Add(a_, 1);
  EXPECT_EQ(Next(), "hold");
}

TEST_F(DeviceQueueTest, SidesOfACanaryDoNotMixAndItsEndRegroupsNothing) {
  const auto split = std::make_shared<CanarySplit>();
  split->id = 7;
  split->share = 0.5;
  auto candidate = std::make_shared<LeverSnapshot>(*levers_);
  ASSERT_TRUE(candidate->levers.Set("m16_tc", "all:m16").ok());
  candidate->epoch = 99;
  split->candidate = candidate;
  split->valve = std::make_shared<CanaryValve>();
  const auto add = [&](const std::string& client, uint64_t canary) {
    auto call = std::make_shared<TestCall>(std::vector{a_}, 1);
    call->client = client;
    call->id = std::to_string(seq_);
    queue_.Add(call, now_, seq_++, {.canary = canary, .under = 7});
  };
  const auto pick = [&](bool running) {
    Batch batch;
    LeverView view{.live = levers_};
    if (running) view.canary = split;
    queue_.Pick(view, now_, rules_, batch);
    std::string text = std::to_string(batch.levers->epoch) + (batch.candidate() ? "*" : "");
    for (const TakenCall& taken : batch.calls) text += " " + taken.call->client;
    return text;
  };
  const std::string live = std::to_string(levers_->epoch);
  add("x", 0);
  add("y", 7);
  add("z", 0);
  add("y", 7);
  EXPECT_EQ(pick(true), live + " x z");
  EXPECT_EQ(pick(true), "99* y y");
  // The canary ends while its calls wait: they run under the live levers.
  add("y", 7);
  EXPECT_EQ(pick(false), live + " y");
  // A breach turns the very next batch, before the store knows.
  add("y", 7);
  split->valve->closed = true;
  EXPECT_EQ(pick(true), live + " y");
  split->valve->closed = false;
  add("y", 6);  // of a canary before this one
  EXPECT_EQ(pick(true), live + " y");
  EXPECT_TRUE(queue_.empty());
}

TEST_F(DeviceQueueTest, WhatWaitedBeforeACanaryIsOfNeitherSide) {
  const auto split = std::make_shared<CanarySplit>();
  split->id = 7;
  split->share = 0.5;
  split->candidate = std::make_shared<LeverSnapshot>(*levers_);
  split->valve = std::make_shared<CanaryValve>();
  const auto add = [&](uint64_t under) {
    queue_.Add(std::make_shared<TestCall>(std::vector{a_}, 1), now_, seq_++, {.under = under});
  };
  // Whether the next batch, of so many calls, counts for the control.
  const auto counts = [&](size_t calls) {
    Batch batch;
    queue_.Pick({.live = levers_, .canary = split}, now_, rules_, batch);
    EXPECT_EQ(batch.calls.size(), calls);
    EXPECT_EQ(batch.levers, levers_);
    return batch.canary != nullptr;
  };
  for (uint64_t before : {uint64_t{0}, uint64_t{5}}) {  // no canary, and an earlier one
    add(before);
    EXPECT_FALSE(counts(1)) << before;
    // One such call is enough, wherever it is in the batch.
    add(7);
    add(before);
    add(7);
    EXPECT_FALSE(counts(3)) << before;
  }
  add(7);
  EXPECT_TRUE(counts(1));
}

TEST_F(DeviceQueueTest, StepsAndOutputTypesDoNotMix) {
  auto prefill = std::make_shared<TestCall>(std::vector{a_}, 64);
  prefill->step = Step::kPrefill;
  prefill->id = "p";
  auto bf16 = std::make_shared<TestCall>(std::vector{a_}, 1);
  bf16->output_type = DType::kBf16;
  bf16->id = "b";
  Add(a_, 1);
  queue_.Add(prefill, now_, seq_++);
  queue_.Add(bf16, now_, seq_++);
  EXPECT_EQ(Next(), "device_idle c1");
  EXPECT_EQ(Next(), "device_idle clientp");
  EXPECT_EQ(Next(), "device_idle clientb");
}

// Random adds, removals and picks against plain bookkeeping: nothing is lost, doubled, reordered
// within a client, or over the bound.
TEST_F(DeviceQueueTest, RandomOperationsKeepEveryPromise) {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::map<std::string, std::vector<Waiting*>> expected;  // shard and client -> calls in order
  std::map<const Waiting*, std::string> ids;
  int64_t taken = 0;
  for (int step = 0; step < 20000; ++step) {
    now_ += absl::Microseconds(below(100));
    const int action = below(10);
    if (action < 5) {
      const auto& shard = below(2) ? a_ : b_;
      const std::string client(1, static_cast<char>('a' + below(6)));
      deadline_ = below(3) ? absl::InfiniteFuture() : now_ + absl::Milliseconds(below(100));
      Waiting* w = Add(shard, 1 + below(32), client, static_cast<Policy>(below(3)));
      expected[shard->name + client].push_back(w);
    } else if (action < 7 && !queue_.empty()) {
      auto& [key, calls] = *std::next(expected.begin(), below(static_cast<int>(expected.size())));
      if (calls.empty()) continue;
      const size_t at = static_cast<size_t>(below(static_cast<int>(calls.size())));
      const std::string id = calls[at]->call->id;
      EXPECT_EQ(queue_.Remove(calls[at]).call->id, id);
      calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      if (below(50) == 0) SetLever("m16_tc", below(2) ? "all:m16" : "off");
      std::map<std::string, std::vector<std::string>> order;
      for (const auto& [key, calls] : expected) {
        for (const Waiting* w : calls) order[key].push_back(w->call->id);
      }
      Batch batch;
      queue_.Pick({.live = levers_}, now_, rules_, batch);
      int rows = 0;
      for (const TakenCall& t : batch.calls) {
        const std::string key = t.call->shards[0]->name + t.call->client;
        ASSERT_FALSE(order[key].empty());
        EXPECT_EQ(order[key].front(), t.call->id);
        order[key].erase(order[key].begin());
        expected[key].erase(expected[key].begin());
        EXPECT_EQ(t.call->shards, batch.calls[0].call->shards);
        rows += t.call->rows;
        ++taken;
      }
      EXPECT_EQ(batch.rows, rows);
      EXPECT_LE(rows, 32);
    }
    size_t waiting = 0;
    absl::Time earliest = absl::InfiniteFuture();
    for (const auto& [key, calls] : expected) {
      waiting += calls.size();
      for (const Waiting* w : calls) earliest = std::min(earliest, w->call->deadline);
    }
    ASSERT_EQ(queue_.empty(), waiting == 0);
    if (waiting > 0) {
      ASSERT_EQ(queue_.MostUrgent()->call->deadline, earliest);
    }
  }
  EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace fulcrum

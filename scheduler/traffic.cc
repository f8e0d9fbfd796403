// See traffic.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/traffic.h"

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/canary_split.h"

namespace fulcrum {
namespace {

size_t NumberOfThread() {
  static std::atomic<size_t> threads{0};
  thread_local const size_t number = threads.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

void Traffic::Add(std::span<const Call* const> calls, absl::Time at) {
  if (calls.empty()) return;
  int64_t rows = 0, fastest = 0;
  Stripe& stripe = stripes_[NumberOfThread() % kStripes];
  absl::MutexLock lock(&stripe.mu);
  for (const Call* call : calls) {
    rows += call->rows;
    if (call->policy == Policy::kFastest) fastest += call->rows;
    const auto client = [call] { return call->client; };
    const auto connection = [call] { return absl::StrCat("a connection of ", call->client); };
    stripe.clients.Add(UnitKey(CanaryUnit::kClient, *call), client, call->rows, at);
    stripe.connections.Add(UnitKey(CanaryUnit::kConnection, *call), connection, call->rows, at);
  }
  const Call& first = *calls.front();
  const auto shard = [&first] { return first.shards.front()->name; };
  stripe.shards.Add(UnitKey(CanaryUnit::kShard, first), shard, rows, at);
  if (fastest > 0)
    stripe.fastest.Add(
        0, [] { return std::string(); }, fastest, at);
}

TrafficTable Traffic::Stripe::*Traffic::TableOf(CanaryUnit unit) {
  switch (unit) {
    case CanaryUnit::kConnection:
      return &Stripe::connections;
    case CanaryUnit::kShard:
      return &Stripe::shards;
    case CanaryUnit::kClient:
    case CanaryUnit::kBatch:
      break;
  }
  return &Stripe::clients;
}

SeenTraffic Traffic::Sum(TrafficTable Stripe::*table, absl::Time now) const {
  SeenTraffic seen;
  for (const Stripe& stripe : stripes_) {
    seen.units.reserve(seen.units.size() + TrafficTable::kMostEntries);
    absl::MutexLock lock(&stripe.mu);
    (stripe.*table).AddTo(now, seen);
  }
  Merge(seen.units);
  return seen;
}

SeenTraffic Traffic::By(CanaryUnit unit, absl::Time now) const { return Sum(TableOf(unit), now); }

std::string Traffic::NameOf(CanaryUnit unit, uint64_t key) const {
  for (const Stripe& stripe : stripes_) {
    absl::MutexLock lock(&stripe.mu);
    if (std::string name = (stripe.*TableOf(unit)).NameOf(key); !name.empty()) return name;
  }
  return std::string();
}

int64_t Traffic::FastestRows(absl::Time now) const { return Sum(&Stripe::fastest, now).rows; }

}  // namespace fulcrum

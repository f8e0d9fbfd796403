// The traffic of the last minute, by every unit that a canary can divide it by: whether a share of
// units is that share of rows depends on how rows are spread over them. Calls that ran count.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/call.h"
#include "scheduler/canary_spec.h"
#include "scheduler/traffic_table.h"

namespace fulcrum {

// Thread-safe. Each thread that adds has, as a rule, tables and a lock of its own; a batch of 32
// calls takes it once, for some 2 us.
class Traffic {
 public:
  // The calls of a batch: all name the same shards.
  void Add(std::span<const Call* const> calls, absl::Time at);

  // By client, connection or shard. By batch: the clients, since each batch is drawn anew.
  SeenTraffic By(CanaryUnit unit, absl::Time now) const;
  // For people; empty when it is no longer known.
  std::string NameOf(CanaryUnit unit, uint64_t key) const;
  // Rows of calls under FASTEST, which alone a canary by batch divides.
  int64_t FastestRows(absl::Time now) const;

 private:
  static constexpr size_t kStripes = 4;
  struct alignas(ABSL_CACHELINE_SIZE) Stripe {
    mutable absl::Mutex mu;
    TrafficTable clients ABSL_GUARDED_BY(mu),
        connections ABSL_GUARDED_BY(mu), shards ABSL_GUARDED_BY(mu), fastest ABSL_GUARDED_BY(mu);
  };
  static TrafficTable Stripe::*TableOf(CanaryUnit unit);
  SeenTraffic Sum(TrafficTable Stripe::*table, absl::Time now) const;

  std::array<Stripe, kStripes> stripes_;
};

}  // namespace fulcrum

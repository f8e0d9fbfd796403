// How traffic divides between control and canary while one runs: the sticky assignment, and the
// switch that a breach turns. Made by the lever store, read wherever a batch takes its snapshot.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "scheduler/canary_spec.h"

namespace fulcrum {

struct LeverSnapshot;

// A number that spreads evenly whatever the key and salt are; the same on every machine and build.
uint64_t StickyHash(uint64_t salt, std::string_view key);
// Whether the key is among the share. Equal salts and keys always agree, and a larger share keeps
// every key of a smaller one.
bool Assigned(uint64_t salt, std::string_view key, double share);

// What stops the candidate from running at once. Shared by all who run it; thread-safe.
struct CanaryValve {
  // Turned once, by whoever finds the breach: from then on every batch is picked under the live
  // snapshot, before the store has made the end of the canary an epoch.
  std::atomic<bool> closed{false};

  // The first batches are all shadow-checked (shadow.h). While so many rows of them still wait for
  // their check, further batches run under the live snapshot: what a wrong arm can serve before it
  // is found is bounded by rows, not by time. The price is that a client (or shard) of the canary's
  // side may get either epoch until then. Fewer clients at first would not mend it, one of them can
  // bring more rows than are checked; holding its calls back would make each wait for a CPU's
  // check.
  static constexpr int64_t kFirstBatches = 200;
  static constexpr int64_t kMaxUngradedRows = 64;
  std::atomic<int64_t> batches{0};        // of a non-exact arm, launched
  std::atomic<int64_t> ungraded_rows{0};  // of the first ones

  bool open() const {
    return !closed.load(std::memory_order_acquire) &&
           ungraded_rows.load(std::memory_order_relaxed) < kMaxUngradedRows;
  }
};

// Immutable. A change of other levers makes a new one with the same id and valve.
struct CanarySplit {
  uint64_t id = 0;  // salt of the assignment, and part of lane keys; never 0
  double share = 0;
  CanaryUnit unit = CanaryUnit::kClient;
  std::shared_ptr<const LeverSnapshot> candidate;
  std::shared_ptr<CanaryValve> valve;
};

}  // namespace fulcrum

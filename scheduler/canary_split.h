// How traffic divides between control and canary while one runs: the sticky assignment, and the
// switch that a breach turns. Made by the lever store, read wherever a batch takes its snapshot.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/canary_spec.h"

namespace fulcrum {

class Call;
struct LeverSnapshot;

// What stands for a name below. The same on every machine and build.
uint64_t KeyHash(std::string_view name);
// A number that spreads evenly whatever the key and salt are.
uint64_t StickyHash(uint64_t salt, uint64_t key);
// Whether the key is among the share. Equal salts and keys always agree, and a larger share keeps
// every key of a smaller one.
bool Assigned(uint64_t salt, uint64_t key, double share);

// The key of the unit that a call belongs to. Batches have none: it is the client's.
uint64_t UnitKey(CanaryUnit unit, const Call& call);

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
  // What was checked says nothing of a weight that came later: each version that began to serve
  // after the canary began has first batches of its own.
  static constexpr int64_t kFirstBatches = 200;
  static constexpr int64_t kMaxUngradedRows = 64;
  std::atomic<int64_t> batches{0};        // of a non-exact arm and no later weight, launched
  std::atomic<int64_t> ungraded_rows{0};  // of the first ones

  bool open() const {
    return !closed.load(std::memory_order_acquire) &&
           ungraded_rows.load(std::memory_order_relaxed) < kMaxUngradedRows;
  }

  explicit CanaryValve(uint64_t latest_generation = 0) : known_(latest_generation) {}
  // Counts a batch that runs non-exact arms on versions of these generations, one or more. True: it
  // is among the first.
  bool CountFirst(std::span<const uint64_t> generations);

 private:
  const uint64_t known_;  // shards of a higher generation came later
  absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, int64_t> later_ ABSL_GUARDED_BY(mu_);  // batches by generation
};

// Immutable. A change of other levers makes a new one with the same id, salt and valve.
struct CanarySplit {
  uint64_t id = 0;    // part of lane keys; never 0
  uint64_t salt = 0;  // of the assignment: chosen for the traffic seen (canary_share.h)
  double share = 0;
  CanaryUnit unit = CanaryUnit::kClient;
  // The first epoch that has what other levers that choose arms were set to meanwhile; 0: none was.
  uint64_t arms_since = 0;
  std::shared_ptr<const LeverSnapshot> candidate;
  std::shared_ptr<CanaryValve> valve;
};

}  // namespace fulcrum

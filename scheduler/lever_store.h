// The live levers: immutable numbered snapshots, changed by one writer at a time, watched by many.
// A batch takes one snapshot from pick to reply. Where a value came from is part of the snapshot.
// Canaries (a candidate snapshot for a share of traffic) will choose between two snapshots at the
// one place where a batch takes its snapshot: SnapshotFor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/ladder/levers.h"
#include "scheduler/clock.h"

namespace fulcrum {

// Rising precedence; a latched value (configuration or environment) beats what comes after. Nothing
// keeps changes over a restart yet: kJournal is reserved for what will, and no value has it.
enum class LeverSource : uint8_t { kBuiltIn, kProfile, kConfig, kEnvironment, kJournal, kRpc };
std::string_view Name(LeverSource source);

struct LeverSnapshot {
  uint64_t epoch = 1;
  LeverSet levers;
  std::array<LeverSource, kLeverCount> source{};
  std::array<bool, kLeverCount> latched{};
};

// One change, as WatchLevers streams it.
struct LeverEvent {
  uint64_t epoch = 0;
  absl::Time time;
  std::string lever, from, to;
  LeverSource source = LeverSource::kRpc;
  std::string actor, reason;
  std::string cause;  // "set", later "canary_start", "promote", "revert"
};

struct LeverChange {
  std::string lever, value;
};

class LeverStore {
 public:
  explicit LeverStore(const Clock& clock, const LeverSnapshot& initial = {});

  std::shared_ptr<const LeverSnapshot> Snapshot() const;

  struct SetOptions {
    uint64_t based_on_epoch = 0;  // 0: no check. Otherwise ABORTED when it is not the live epoch
    bool validate_only = false;
    LeverSource source = LeverSource::kRpc;
    std::string actor = {}, reason = {};
  };
  // All or nothing. Returns the live snapshot (validate_only: the one that would be). Setting what
  // is already so makes no new epoch. INVALID_ARGUMENT for unknown lever or value,
  // FAILED_PRECONDITION for a latched one, ABORTED (message carries the live epoch) for a stale
  // base.
  absl::StatusOr<std::shared_ptr<const LeverSnapshot>> Set(const std::vector<LeverChange>& changes,
                                                           const SetOptions& options);

  // Calls `listener` after every change, in order, on the changing thread, without the store's lock
  // being needed by the listener. Returns a handle whose destruction unsubscribes (and waits for a
  // running call of the listener). A listener must not call Set or drop its own handle.
  class Subscription;
  std::shared_ptr<Subscription> Subscribe(std::function<void(const LeverEvent&)> listener);
  std::vector<LeverEvent> History() const;  // newest last, at most kHistory

  static constexpr size_t kHistory = 1024;

 private:
  const Clock& clock_;
  mutable absl::Mutex mu_;
  std::shared_ptr<const LeverSnapshot> live_ ABSL_GUARDED_BY(mu_);
  std::deque<LeverEvent> history_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<Subscription>> subscriptions_ ABSL_GUARDED_BY(mu_);
  absl::Mutex notify_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // keeps events in order
};

}  // namespace fulcrum

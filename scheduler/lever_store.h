// The live levers: immutable numbered snapshots, changed by one writer at a time, watched by many.
// A batch takes one snapshot from pick to reply. Where a value came from is part of the snapshot.
//
// While a canary runs there are two: the live one, which is the control, and the candidate for a
// share of traffic (canary_split.h). Both have an epoch of their own, and the live one's is always
// the highest ever given: an epoch names one set of values for good. Who decides when a canary ends
// is canary_control.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
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
#include "scheduler/canary_spec.h"
#include "scheduler/canary_split.h"
#include "scheduler/clock.h"
#include "scheduler/lever_event.h"
#include "scheduler/lever_journal.h"

namespace fulcrum {

struct LeverSnapshot {
  uint64_t epoch = 1;
  LeverSet levers;
  std::array<LeverSource, kLeverCount> source{};
  std::array<bool, kLeverCount> latched{};
};

// The levers that calls of one moment may see.
struct LeverView {
  std::shared_ptr<const LeverSnapshot> live = nullptr;
  std::shared_ptr<const CanarySplit> canary = nullptr;  // null: none runs
};

struct LeverPast {
  LeverLog* log = nullptr;                // outlives the store; null: nothing outlives a restart
  std::vector<LeverEvent> history = {};   // of earlier lives of the node
  std::vector<LeverStep> unwritten = {};  // what the start itself did and the log did not take
  // Called with each step that the log did not take (of a canary's promotion, which is tried again,
  // once), under the store's lock for changes: it must not change the store.
  std::function<void(const LeverStep&, const absl::Status&)> on_not_kept = nullptr;
};

class LeverStore {
 public:
  explicit LeverStore(const Clock& clock, const LeverSnapshot& initial = {}, LeverPast past = {});

  LeverView View() const;
  std::shared_ptr<const LeverSnapshot> Snapshot() const { return View().live; }

  struct SetOptions {
    uint64_t based_on_epoch = 0;  // 0: no check. Otherwise ABORTED when it is not the live epoch
    bool validate_only = false;
    LeverSource source = LeverSource::kRpc;
    std::string actor = {}, reason = {};
  };
  // All or nothing. Returns the live snapshot (validate_only: the one that would be). Setting what
  // is already so, by RPC too, makes no new epoch. INVALID_ARGUMENT for unknown lever or value,
  // FAILED_PRECONDITION for a latched one and for one under canary, ABORTED (message carries the
  // live epoch) for a stale base, UNAVAILABLE when the log cannot keep the change.
  absl::StatusOr<std::shared_ptr<const LeverSnapshot>> Set(const std::vector<LeverChange>& changes,
                                                           const SetOptions& options);

  // Opens the candidate for its share, as a step of its own. Errors as Set; also
  // FAILED_PRECONDITION while another canary runs (one at a time: two would be each other's load),
  // INVALID_ARGUMENT for a candidate that changes nothing. The salt is of the assignment to sides;
  // 0: the canary's id.
  struct Started {
    LeverView view = {};
    std::vector<LeverChange> control = {};  // the values that stay live
  };
  absl::StatusOr<Started> StartCanary(const CanarySpec& spec, uint64_t based_on_epoch,
                                      bool validate_only, uint64_t salt = 0);
  // Ends the canary that runs: kPromote makes its values live (source kRpc); kRevert and kAbort
  // leave the live ones. NOT_FOUND when it does not run (any more). A promotion that the log cannot
  // keep is refused, UNAVAILABLE; the other ends always take effect, and return the log's error:
  // the step is then unwritten, as below.
  absl::Status EndCanary(uint64_t id, LeverCause cause, const std::string& actor,
                         const std::string& reason, const std::string& evidence);

  // Steps that took effect without the log: a start's, and the end of a canary. An epoch that is
  // not on record could be given again by the next start, so no change is accepted (UNAVAILABLE)
  // until they are written: every change tries that first, and WriteUnwritten does without one.
  bool unwritten() const { return unwritten_count_.load(std::memory_order_acquire) > 0; }
  absl::Status WriteUnwritten();

  // Calls `listener` after every change, in order, on the changing thread, without the store's lock
  // being needed by the listener. Returns a handle whose destruction unsubscribes (and waits for a
  // running call of the listener). A listener must not change the store or drop its own handle.
  class Subscription;
  std::shared_ptr<Subscription> Subscribe(std::function<void(const LeverEvent&)> listener);
  std::vector<LeverEvent> History() const;  // newest last, at most kHistory

  static constexpr size_t kHistory = 1024;

 private:
  absl::Status CheckBase(uint64_t based_on_epoch, const LeverSnapshot& live) const;
  // Applies changes by name, refusing what Set refuses. `next` starts as a copy of view.live.
  absl::Status Apply(const std::vector<LeverChange>& changes, LeverSource source,
                     const LeverView& view, LeverSnapshot& next) const;
  void Publish(LeverView next, const LeverStep& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(notify_mu_);
  absl::Status CatchUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(notify_mu_);
  // Everything unwritten, then the step; OK without a log.
  absl::Status Keep(const LeverStep& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(notify_mu_);

  const Clock& clock_;
  LeverLog* const log_;
  const std::function<void(const LeverStep&, const absl::Status&)> on_not_kept_;
  mutable absl::Mutex mu_;
  LeverView view_ ABSL_GUARDED_BY(mu_);
  std::deque<LeverEvent> history_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<Subscription>> subscriptions_ ABSL_GUARDED_BY(mu_);
  absl::Mutex notify_mu_ ABSL_ACQUIRED_BEFORE(mu_);              // keeps events in order
  std::deque<LeverStep> unwritten_ ABSL_GUARDED_BY(notify_mu_);  // oldest first
  std::atomic<size_t> unwritten_count_;
  uint64_t told_not_kept_ ABSL_GUARDED_BY(notify_mu_) = 0;  // canary whose promotion was told
};

}  // namespace fulcrum

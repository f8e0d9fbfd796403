// The canary of a running node: joins the pure state machine (canary.h) to what the scheduler and
// the checkers report, to the lever store and to the clock. It is an observer in front of another:
// everything passes through, and what concerns the canary is looked at on the way. A breach closes
// the canary's valve on the thread that reported it, so the next batch picked anywhere runs under
// the live levers; making that an epoch, an event and a journal record is this class's thread's.
// So is writing down what the journal could not take when it happened (LeverStore::unwritten).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/canary.h"
#include "scheduler/clock.h"
#include "scheduler/lever_store.h"
#include "scheduler/observer.h"
#include "scheduler/traffic.h"

namespace fulcrum {

class CanaryControl final : public Observer {
 public:
  // All outlive it. `on_change` (may be empty) is called after a canary started, held or ended, in
  // order, without a lock that the methods below need; it must not start or end one.
  CanaryControl(LeverStore& store, Observer& next, const Clock& clock,
                std::function<void(const CanaryReport&)> on_change);
  ~CanaryControl() override;  // a canary that runs is left to the journal

  // As LeverStore::StartCanary; also FAILED_PRECONDITION for a share that one unit alone exceeds
  // (canary_share.h). validate_only: nothing starts, the report says what would.
  absl::StatusOr<CanaryReport> Start(const CanarySpec& spec, uint64_t based_on_epoch,
                                     bool validate_only);
  // NOT_FOUND when it never was; FAILED_PRECONDITION when it ended, and for a promotion before the
  // guards had their minimum of samples; UNAVAILABLE as LeverStore::EndCanary.
  absl::StatusOr<CanaryReport> Promote(uint64_t id, const std::string& actor,
                                       const std::string& reason);
  absl::StatusOr<CanaryReport> Abort(uint64_t id, const std::string& actor,
                                     const std::string& reason);
  absl::StatusOr<CanaryReport> Heartbeat(uint64_t id);
  // The canary that runs, else the last one of this life of the node.
  std::optional<CanaryReport> Last() const;
  // A weight's state changed (ShardStore's on_change): evidence of the version before it must not
  // promote it, though no batch ran on it yet.
  void OnShard(const ShardInfo& info);

  // The last minute as the canary divides it, or would.
  CanaryTraffic TrafficNow(const CanarySpec& spec, uint64_t salt) const {
    return TrafficOf(traffic_, spec, salt, clock_.Now());
  }
  SeenTraffic Clients() const { return traffic_.By(CanaryUnit::kClient, clock_.Now()); }

  void OnLaunch(const LaunchEvent& e) override { next_.OnLaunch(e); }
  void OnCalls(std::span<const Call* const> calls, absl::Time picked) override {
    traffic_.Add(calls, picked);
    next_.OnCalls(calls, picked);
  }
  void OnCallQueued(const Arm& arm, Phase phase, double seconds) override {
    next_.OnCallQueued(arm, phase, seconds);
  }
  void OnReject(RejectReason reason) override { next_.OnReject(reason); }
  void OnDeclined(const Arm& asked, const Arm& ran, std::string_view reason) override {
    next_.OnDeclined(asked, ran, reason);
  }
  void OnQueue(int64_t rows, int64_t bytes) override { next_.OnQueue(rows, bytes); }
  void OnAudit(const Arm& arm, AuditResult result) override { next_.OnAudit(arm, result); }
  void OnAuditError(std::string_view shard, const absl::Status& why) override {
    next_.OnAuditError(shard, why);
  }
  void OnBundle(std::string_view path) override { next_.OnBundle(path); }
  void OnDeviceFault(std::string_view device, const absl::Status& status) override {
    next_.OnDeviceFault(device, status);
  }
  void OnException(Thrower thrower, const absl::Status& what) override {
    next_.OnException(thrower, what);
  }
  void OnLoopEnded(std::string_view device) override { next_.OnLoopEnded(device); }
  void OnBatch(const BatchEvent& event) override;
  void OnShadow(const ShadowEvent& event) override;
  void OnIncident(const Incident& incident) override;

 private:
  // What the thread may have to do; see Loop.
  enum class Task : uint8_t { kStop, kWrite, kTraffic, kTell, kDecide };
  Task NextTask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Loop();
  void LookAtTraffic() ABSL_LOCKS_EXCLUDED(mu_);
  void Act() ABSL_LOCKS_EXCLUDED(mu_);
  // Tells the canary of levers that were set meanwhile: evidence of others must not promote it.
  void NoteArms() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Looks at the guards after something was reported.
  void Check() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Known(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  CanaryReport Report() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<CanaryReport> EndByHand(uint64_t id, LeverCause cause, const std::string& actor,
                                         const std::string& reason);
  // Ends it in the store, then here.
  absl::Status End(uint64_t id, LeverCause cause, const std::string& actor,
                   const std::string& reason, std::string evidence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  void TellChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_) ABSL_LOCKS_EXCLUDED(mu_);

  LeverStore& store_;
  Observer& next_;
  const Clock& clock_;
  const std::function<void(const CanaryReport&)> on_change_;
  absl::Mutex change_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // one start or end at a time
  mutable absl::Mutex mu_;
  std::unique_ptr<Canary> canary_ ABSL_GUARDED_BY(mu_);  // the last one; null: never any
  std::shared_ptr<CanaryValve> valve_ ABSL_GUARDED_BY(mu_);
  uint64_t salt_ ABSL_GUARDED_BY(mu_) = 0;
  CanaryTraffic traffic_before_ ABSL_GUARDED_BY(mu_);
  int64_t told_restarts_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time not_before_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();    // of a promotion
  absl::Time write_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();      // what is unwritten
  absl::Time traffic_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // next look at it
  std::vector<LeverChange> control_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0, control_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  // Why its end could not be journalled: a promotion that still waits for it, or another end, which
  // took effect.
  std::string not_kept_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Traffic traffic_;
  absl::CondVar act_;              // the thread should look
  std::atomic<bool> live_{false};  // a canary runs or holds: worth taking the lock
  std::thread thread_;
};

}  // namespace fulcrum

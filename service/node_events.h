// What the scheduler and the auditor report, passed on: everything is counted (metrics.h), and what
// stops a device also reaches health and the log.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "scheduler/canary.h"
#include "scheduler/observer.h"
#include "service/health.h"
#include "service/identity.h"
#include "service/log.h"
#include "service/metrics.h"

namespace fulcrum::service {

class NodeEvents final : public Observer {
 public:
  struct Options {
    bool stop_device_on_mismatch =
        false;  // take a device out of service when wrong bits were found
    std::function<void(const absl::Status& why)>
        on_device_lost;  // after every launch that failed so
  };
  // Everything referred to outlives the events.
  NodeEvents(std::vector<Backend*> devices, Metrics& metrics, NodeHealth& health, const Logger& log,
             Options options)
      : devices_(std::move(devices)),
        metrics_(metrics),
        health_(health),
        log_(log),
        options_(std::move(options)) {}

  void OnLaunch(const LaunchEvent& event) override { metrics_.OnLaunch(event); }
  void OnCallQueued(const Arm& arm, Phase phase, double seconds) override {
    metrics_.OnCallQueued(arm, phase, seconds);
  }
  void OnReject(RejectReason reason) override { metrics_.OnReject(reason); }
  void OnDeclined(const Arm& asked, const Arm& ran, std::string_view reason) override {
    metrics_.OnDeclined(asked, ran, reason);
  }
  void OnQueue(int64_t rows, int64_t bytes) override { metrics_.OnQueue(rows, bytes); }
  void OnAudit(const Arm& arm, AuditResult result) override { metrics_.OnAudit(arm, result); }
  // One warning a shard and hour: every audit of a shard whose file changed fails.
  void OnAuditError(std::string_view shard, const absl::Status& why) override;
  void OnBatch(const BatchEvent& event) override { metrics_.OnBatch(event); }
  // One warning a tier and hour for checks that fail.
  void OnShadow(const ShadowEvent& event) override;
  void OnBundle(std::string_view path) override;
  void OnIncident(const Incident& incident) override;
  void OnDeviceFault(std::string_view device, const absl::Status& status) override;
  // One line a place every ten seconds; all are counted.
  void OnException(Thrower thrower, const absl::Status& what) override;
  void OnLoopEnded(std::string_view device) override;

  // An RPC brought an identity header. The first that is ignored, of each kind, is a debug line.
  void OnIdentityHeader(HeaderUse use, const Peer& peer);
  void LeverChanged(const LeverEvent& event);
  // A canary started, holds, begins to gather evidence again, or ended.
  void CanaryChanged(const CanaryReport& report);
  // The journal did not take the step. A start, a revert and an abort took effect all the same;
  // nothing else did.
  void OnLeverNotKept(const LeverStep& step, const absl::Status& why);

 private:
  // Whether a warning about `key` is due; then none is for `pause`.
  bool MayWarn(std::string_view key, absl::Duration pause = absl::Hours(1));

  const std::vector<Backend*> devices_;
  Metrics& metrics_;
  NodeHealth& health_;
  const Logger& log_;
  const Options options_;
  std::array<std::atomic<bool>, kAllHeaderUses.size()> told_header_{};
  absl::Mutex mu_;
  std::map<std::string, absl::Time, std::less<>> next_warning_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fulcrum::service

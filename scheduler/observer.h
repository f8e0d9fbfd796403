// What the outside may hear of the scheduler: metrics, events and logs hang on this interface, so
// that no Prometheus or gRPC is needed below the service. Called on hot paths without locks held;
// implementations are thread-safe and fast.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/ladder/arm.h"
#include "kernels/types.h"
#include "scheduler/call.h"

namespace fulcrum {

struct LaunchEvent {
  const Arm* arm = nullptr;
  const Shard* shard = nullptr;
  Step step = Step::kDecode;
  int rows = 0;
  CloseReason close_reason = CloseReason::kDeviceIdle;
  double gather = 0, copy_in = 0, kernel = 0, copy_out = 0;  // seconds, of the whole launch
};

enum class RejectReason : uint8_t { kQueueRows, kQueueBytes, kDraining, kExpired, kCancelled };
inline constexpr std::array kAllRejectReasons = {RejectReason::kQueueRows,
                                                 RejectReason::kQueueBytes, RejectReason::kDraining,
                                                 RejectReason::kExpired, RejectReason::kCancelled};
std::string_view Name(RejectReason reason);

// Outcome of one recomputed output (auditor.h) or one scrubbed weight.
enum class AuditResult : uint8_t { kMatch, kMismatch, kDropped, kError };
inline constexpr std::array kAllAuditResults = {AuditResult::kMatch, AuditResult::kMismatch,
                                                AuditResult::kDropped, AuditResult::kError};
std::string_view Name(AuditResult result);

// Stands for the scrub where an arm is named (OnAudit): scrubbing runs no arm.
inline constexpr Arm kScrubArm = {.name = "scrub", .gate = {}};

// A mismatch: wrong bits were found. Everything needed to look it up.
struct Incident {
  std::string what;  // "audit" or "scrub"
  std::string shard, shard_hash, device, arm;
  int64_t column = -1;
  uint32_t expected_bits = 0, found_bits = 0;
  uint64_t lever_epoch = 0;
};

class Observer {
 public:
  virtual ~Observer() = default;
  // Once per (launch, shard) after a successful run; a batch of several shards reports each.
  virtual void OnLaunch(const LaunchEvent&) {}
  // Once per call that ran: seconds it waited from Submit to pick.
  virtual void OnCallQueued(const Arm&, Phase, double /*seconds*/) {}
  virtual void OnReject(RejectReason) {}
  // An arm was asked for by a lever but another ran.
  virtual void OnDeclined(const Arm& /*asked*/, const Arm& /*ran*/, std::string_view /*reason*/) {}
  virtual void OnQueue(int64_t /*rows*/, int64_t /*bytes*/) {}  // now waiting
  virtual void OnAudit(const Arm&, AuditResult) {}
  // Beside each AuditResult::kError: the shard's file changed, cannot be read, ...
  virtual void OnAuditError(std::string_view /*shard*/, const absl::Status& /*why*/) {}
  virtual void OnIncident(const Incident&) {}
  virtual void OnDeviceFault(std::string_view /*device*/, const absl::Status&) {}
};

}  // namespace fulcrum

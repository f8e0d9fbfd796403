// What the outside may hear of the scheduler: metrics, events and logs hang on this interface, so
// that no Prometheus or gRPC is needed below the service. Called on hot paths without locks held;
// implementations are thread-safe and fast.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/time.h"
#include "kernels/ladder/arm.h"
#include "kernels/types.h"
#include "scheduler/call.h"
#include "scheduler/exceptions.h"

namespace fulcrum {

struct LaunchEvent {
  const Arm* arm = nullptr;
  const Shard* shard = nullptr;
  Step step = Step::kDecode;
  int rows = 0;
  CloseReason close_reason = CloseReason::kDeviceIdle;
  double gather = 0, copy_in = 0, kernel = 0, copy_out = 0;  // seconds, of the whole launch
};

// A whole launch, run or failed, with what it takes to compare it with others like it.
struct BatchEvent {
  std::span<const std::shared_ptr<const Shard>> shards;
  // One a shard: the arm that ran; the arm that the live levers would have run (the same unless
  // `candidate`); the arm that the batch's levers asked for where that could not run, else null.
  std::span<const Arm*const> ran, control, asked;
  Step step = Step::kDecode;
  DType output_type = DType::kBf16;
  int rows = 0;
  // The clients of its calls (KeyHash, canary_split.h), in any order and as often as they come.
  std::span<const uint64_t> clients = {};
  double kernel = 0;       // seconds
  absl::Time picked = {};  // when it took its levers
  uint64_t lever_epoch = 0;
  uint64_t canary = 0;       // the canary on whose canary's or control's side it is; 0: none
  uint64_t arms_since = 0;   // as in CanarySplit
  bool candidate = false;    // it ran under the canary's levers
  absl::Status status = {};  // not OK: arms and times are not set
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

// Outcome of one batch and shard compared with class exact (shadow.h).
enum class ShadowResult : uint8_t { kPass, kFail, kDropped, kError };
inline constexpr std::array kAllShadowResults = {ShadowResult::kPass, ShadowResult::kFail,
                                                 ShadowResult::kDropped, ShadowResult::kError};
std::string_view Name(ShadowResult result);

struct ShadowEvent {
  const Arm* arm = nullptr;
  const Shard* shard = nullptr;
  ShadowResult result = ShadowResult::kPass;
  uint64_t lever_epoch = 0, canary = 0;
  bool candidate = false;
  // Of a comparison that was made (kPass, kFail): the largest distance in values of the output type
  // over elements of at least their row's RMS, the largest |difference| over the row's RMS, and the
  // relative RMS of the worst row.
  int64_t max_ulp = 0;
  double worst_element = 0, worst_row_rms = 0;
  std::string detail = {};  // kFail, kError: what was wrong, one line
};

// A mismatch: wrong bits were found. Everything needed to look it up.
struct Incident {
  std::string what;  // "audit" or "scrub"
  std::string shard, shard_hash, device, arm;
  uint64_t shard_version = 0;
  int64_t column = -1;
  uint32_t expected_bits = 0, found_bits = 0;
  uint64_t lever_epoch = 0;
};

class Observer {
 public:
  virtual ~Observer() = default;
  // Once per (launch, shard) after a successful run; a batch of several shards reports each.
  virtual void OnLaunch(const LaunchEvent&) {}
  // Once per launch of either side of a running canary, failed ones too, on a slot thread.
  virtual void OnBatch(const BatchEvent&) {}
  // Once per batch that ran: its calls, which all name the same shards, and when it was picked.
  virtual void OnCalls(std::span<const Call* const>, absl::Time /*picked*/) {}
  // Once per call that ran: seconds it waited from Submit to pick.
  virtual void OnCallQueued(const Arm&, Phase, double /*seconds*/) {}
  virtual void OnReject(RejectReason) {}
  // An arm was asked for by a lever but another ran.
  virtual void OnDeclined(const Arm& /*asked*/, const Arm& /*ran*/, std::string_view /*reason*/) {}
  virtual void OnQueue(int64_t /*rows*/, int64_t /*bytes*/) {}  // now waiting
  virtual void OnAudit(const Arm&, AuditResult) {}
  // Beside each AuditResult::kError: the shard's file changed, cannot be read, ...
  virtual void OnAuditError(std::string_view /*shard*/, const absl::Status& /*why*/) {}
  virtual void OnShadow(const ShadowEvent&) {}
  virtual void OnIncident(const Incident&) {}
  // A checker wrote a bundle of what it had found.
  virtual void OnBundle(std::string_view /*path*/) {}
  virtual void OnDeviceFault(std::string_view /*device*/, const absl::Status&) {}
  // Something threw and was caught; the work at hand was given up, everything else goes on.
  virtual void OnException(Thrower, const absl::Status& /*what*/) {}
  // A loop without which the device's calls do not run, or do not expire, ended for good.
  virtual void OnLoopEnded(std::string_view /*device*/) {}
};

// Calls `body`; what it throws is told to the observer, and returned. Throws nothing.
template <class Body>
absl::Status Guarded(Observer& observer, Thrower thrower, Body&& body) noexcept {
  absl::Status thrown = Caught(std::forward<Body>(body));
  if (!thrown.ok()) (void)Caught([&] { observer.OnException(thrower, thrown); });
  return thrown;
}

}  // namespace fulcrum

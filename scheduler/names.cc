// Spellings of the scheduler's vocabulary (metric labels, reply fields), one table per enum.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/call.h"
#include "scheduler/canary.h"
#include "scheduler/lever_store.h"
#include "scheduler/observer.h"
#include "scheduler/shard_store.h"

namespace fulcrum {
namespace {

constexpr std::string_view kStageNames[] = {"admit",  "queue",    "gather", "copy_in",
                                            "kernel", "copy_out", "reply"};
constexpr std::string_view kCloseNames[] = {"full",     "device_idle",  "window",
                                            "deadline", "lever_change", "drain"};
constexpr std::string_view kRejectNames[] = {"queue_rows", "queue_bytes", "draining", "expired",
                                             "cancelled"};
constexpr std::string_view kAuditNames[] = {"match", "mismatch", "dropped", "error"};
constexpr std::string_view kStateNames[] = {"loading", "serving", "replacing", "draining",
                                            "failed"};
constexpr std::string_view kCauseNames[] = {"start",   "set",    "canary_start",
                                            "promote", "revert", "abort"};
constexpr std::string_view kShadowNames[] = {"pass", "fail", "dropped", "error"};
constexpr std::string_view kUnitNames[] = {"client", "shard", "batch", "connection"};
constexpr std::string_view kSuccessNames[] = {"hold", "promote"};
constexpr std::string_view kCanaryNames[] = {"running", "holding", "promoted", "reverted",
                                             "aborted"};
constexpr std::string_view kSourceNames[] = {"built_in",    "profile", "config",
                                             "environment", "journal", "rpc"};
static_assert(std::size(kStageNames) == kAllStages.size());
static_assert(std::size(kCloseNames) == kAllCloseReasons.size());
static_assert(std::size(kRejectNames) == kAllRejectReasons.size());
static_assert(std::size(kCauseNames) == kAllLeverCauses.size());
static_assert(std::size(kShadowNames) == kAllShadowResults.size());
static_assert(std::size(kUnitNames) == kAllCanaryUnits.size());
static_assert(std::size(kSuccessNames) == kAllCanarySuccesses.size());
static_assert(std::size(kCanaryNames) == kAllCanaryStates.size());
static_assert(std::size(kAuditNames) == kAllAuditResults.size());

}  // namespace

std::string_view Name(Stage v) { return kStageNames[static_cast<size_t>(v)]; }
std::string_view Name(CloseReason v) { return kCloseNames[static_cast<size_t>(v)]; }
std::string_view Name(RejectReason v) { return kRejectNames[static_cast<size_t>(v)]; }
std::string_view Name(AuditResult v) { return kAuditNames[static_cast<size_t>(v)]; }
std::string_view Name(ShadowResult v) { return kShadowNames[static_cast<size_t>(v)]; }
std::string_view Name(CanaryUnit v) { return kUnitNames[static_cast<size_t>(v)]; }
std::string_view Name(CanarySuccess v) { return kSuccessNames[static_cast<size_t>(v)]; }
std::string_view Name(CanaryState v) { return kCanaryNames[static_cast<size_t>(v)]; }
std::string_view Name(ShardState v) { return kStateNames[static_cast<size_t>(v)]; }
std::string_view Name(LeverCause v) { return kCauseNames[static_cast<size_t>(v)]; }
std::string_view Name(LeverSource v) { return kSourceNames[static_cast<size_t>(v)]; }

}  // namespace fulcrum

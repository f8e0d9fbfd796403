// See canary_spec.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_spec.h"

#include <limits>

#include "absl/strings/str_format.h"

namespace fulcrum {
namespace {

constexpr int64_t kMostCount = 1000000;

absl::Status Bad(const char* field, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", field, text));
}

absl::Status CheckRatio(const char* field, double ratio) {
  // Written so that a NaN is refused.
  if (ratio >= kLeastRatio &&
      (ratio <= kMostRatio || ratio == std::numeric_limits<double>::infinity()))
    return absl::OkStatus();
  return Bad(field, absl::StrFormat("%g; expected a ratio from %g (as fast as the control) to %g",
                                    ratio, kLeastRatio, kMostRatio));
}

absl::Status CheckCount(const char* field, int64_t count, int64_t least,
                        int64_t most = kMostCount) {
  if (count >= least && count <= most) return absl::OkStatus();
  return Bad(field, absl::StrFormat("%d; expected %d to %d", count, least, most));
}

}  // namespace

absl::Status CheckCanary(const CanarySpec& spec) {
  if (!(spec.share > 0 && spec.share < 1)) {
    return Bad("share", absl::StrFormat("%g; expected more than 0 and less than 1: without a "
                                        "control there is nothing to compare with",
                                        spec.share));
  }
  if (spec.duration < absl::Seconds(1) || spec.duration > absl::Hours(24 * 30)) {
    return Bad("duration",
               absl::StrFormat("%s; expected 1s to 720h", absl::FormatDuration(spec.duration)));
  }
  const CanaryGuards& guards = spec.guards;
  if (guards.heartbeat < absl::Seconds(1)) {
    return Bad("guards.heartbeat",
               absl::StrFormat("%s; expected at least 1s", absl::FormatDuration(guards.heartbeat)));
  }
  for (const absl::Status& s :
       {CheckCount("guards.min_samples", guards.min_samples, 1),
        CheckCount("guards.min_clients", guards.min_clients, 1, kMostCanaryClients),
        CheckRatio("guards.kernel_p50", guards.kernel_p50),
        CheckRatio("guards.kernel_p99", guards.kernel_p99),
        CheckCount("guards.max_shadow_failures", guards.max_shadow_failures, 0),
        CheckCount("guards.max_failed_launches", guards.max_failed_launches, 0),
        CheckCount("guards.max_declines", guards.max_declines, 0)}) {
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace fulcrum

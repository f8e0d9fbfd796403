// See canary_share.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_share.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/numerics/splitmix.h"
#include "scheduler/canary_split.h"

namespace fulcrum {
namespace {

// Enough to come near with tens of units; a thousand units are looked through in a millisecond.
constexpr uint64_t kSalts = 256;
// In log odds; closer than one row in a hundred.
constexpr double kNearEnough = 0.01;

// What is not listed is of small units, and divides as the share says.
double ExpectedShare(const SeenTraffic& seen, uint64_t salt, double share) {
  if (seen.rows == 0) return 0;
  int64_t listed = 0, assigned = 0;
  for (const UnitRows& unit : seen.units) {
    listed += unit.rows;
    if (Assigned(salt, unit.key, share)) assigned += unit.rows;
  }
  const double rest = share * static_cast<double>(seen.rows - listed);
  return (static_cast<double>(assigned) + rest) / static_cast<double>(seen.rows);
}

double LogOdds(double p) { return std::log(p / (1 - p)); }

// How far an expected share is from the one asked for.
double Distance(double expected, double share) {
  if (expected <= 0 || expected >= 1 || expected > kMostUneven * share) {
    return std::numeric_limits<double>::infinity();
  }
  return std::abs(LogOdds(expected) - LogOdds(share));
}

const char* Remedy(CanaryUnit unit) {
  switch (unit) {
    case CanaryUnit::kConnection:
      return "divide by client, shard or batch";
    case CanaryUnit::kShard:
      return "divide by client, connection or batch";
    case CanaryUnit::kClient:
    case CanaryUnit::kBatch:
      break;
  }
  return "tell clients apart (`identity` in the node's configuration), or divide by connection, "
         "shard or batch";
}

}  // namespace

CanaryTraffic TrafficOf(const Traffic& traffic, const CanarySpec& spec, uint64_t salt,
                        absl::Time now) {
  const SeenTraffic seen = traffic.By(spec.unit, now);
  const bool by_client = spec.unit == CanaryUnit::kClient || spec.unit == CanaryUnit::kBatch;
  const SeenTraffic clients = by_client ? seen : traffic.By(CanaryUnit::kClient, now);
  CanaryTraffic out{.rows = seen.rows,
                    .clients = static_cast<int64_t>(clients.units.size()),
                    .more = seen.more || clients.more};
  if (seen.rows == 0) return out;
  const auto rows = static_cast<double>(seen.rows);
  if (spec.unit == CanaryUnit::kBatch) {
    out.expected = spec.share * static_cast<double>(traffic.FastestRows(now)) / rows;
    return out;
  }
  out.units = static_cast<int64_t>(seen.units.size());
  out.expected = ExpectedShare(seen, salt, spec.share);
  uint64_t largest = 0;
  for (const UnitRows& unit : seen.units) {
    out.canary_units += Assigned(salt, unit.key, spec.share);
    const double share = static_cast<double>(unit.rows) / rows;
    if (share <= out.largest) continue;
    out.largest = share;
    largest = unit.key;
  }
  out.largest_unit = traffic.NameOf(spec.unit, largest);
  return out;
}

uint64_t ChooseSalt(const Traffic& traffic, const CanarySpec& spec, uint64_t first,
                    absl::Time now) {
  if (spec.unit == CanaryUnit::kBatch) return first;
  const SeenTraffic seen = traffic.By(spec.unit, now);
  if (seen.rows == 0) return first;
  uint64_t best = first;
  double best_distance = std::numeric_limits<double>::infinity(), best_share = 2;
  for (uint64_t i = 0; i < kSalts && best_distance > kNearEnough; ++i) {
    const uint64_t salt = i == 0 ? first : SplitMix(first + i * kSplitMixStep);
    const double share = ExpectedShare(seen, salt, spec.share);
    const double distance = Distance(share, spec.share);
    if (std::make_pair(distance, share) >= std::make_pair(best_distance, best_share)) continue;
    best = salt;
    best_distance = distance;
    best_share = share;
  }
  return best;
}

absl::Status CheckEven(const CanaryTraffic& traffic, const CanarySpec& spec) {
  if (spec.allow_uneven || traffic.largest <= kMostUneven * spec.share) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "of the %d rows of the last minute one %s (%s) sent %.3g%%, more than %g times the share of "
      "%.3g%%: it would be on the canary's side as a whole or not at all. Ask for a share of at "
      "least %.3g%%, or %s, or say that the share may be uneven "
      "(--allow-uneven, over the wire allow_uneven)",
      traffic.rows, Name(spec.unit), traffic.largest_unit, traffic.largest * 100, kMostUneven,
      spec.share * 100, std::ceil(traffic.largest * 100 / kMostUneven * 10) / 10,
      Remedy(spec.unit)));
}

std::string Outgrown(const CanaryTraffic& traffic, const CanarySpec& spec) {
  if (spec.allow_uneven || spec.unit == CanaryUnit::kBatch ||
      traffic.expected <= kMostUneven * spec.share) {
    return std::string();
  }
  return absl::StrFormat(
      "its side brought %.3g%% of the %d rows of the last minute, more than %g times its share of "
      "%.3g%% (%d of %d %ss; the largest alone %.3g%%)",
      traffic.expected * 100, traffic.rows, kMostUneven, spec.share * 100, traffic.canary_units,
      traffic.units, Name(spec.unit), traffic.largest * 100);
}

}  // namespace fulcrum

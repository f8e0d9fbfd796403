// What a canary's share of units is in traffic. Units (clients, connections, shards) are few and
// bring very different numbers of rows, so a share of units may be anything between none and all of
// the rows. Here the traffic of the last minute says what it is, the assignment is chosen that
// comes nearest to the share, and what cannot come near is refused. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/canary_spec.h"
#include "scheduler/traffic.h"

namespace fulcrum {

// A unit that alone brings more than so many times the share makes a canary uneven.
inline constexpr double kMostUneven = 5;

// The last minute, as a canary divides it. Shares are of rows, 0 to 1. By batch there are no units:
// the canary's side is the share of what calls under FASTEST brought.
struct CanaryTraffic {
  int64_t rows = 0;     // 0: nothing was seen, so nothing else is known
  int64_t clients = 0;  // that sent them
  int64_t units = 0;
  int64_t canary_units = 0;  // of these, on the canary's side
  bool more = false;         // clients and units are more than could be told apart
  double expected = 0;       // the canary's side
  double largest = 0;        // the unit that brought most
  std::string largest_unit = {};
};
CanaryTraffic TrafficOf(const Traffic& traffic, const CanarySpec& spec, uint64_t salt,
                        absl::Time now);

// The salt under which the canary's side would have had a share of the last minute's rows as near
// as possible to the one asked for: `first`, where nothing was seen, by batch, or where it is near
// enough. Where all are far off (the canary's side would have none, all, or more than kMostUneven
// times the share), one with as little as possible.
uint64_t ChooseSalt(const Traffic& traffic, const CanarySpec& spec, uint64_t first, absl::Time now);

// FAILED_PRECONDITION where one unit alone brought more than kMostUneven times the share, unless
// that is allowed. OK where nothing was seen.
absl::Status CheckEven(const CanaryTraffic& traffic, const CanarySpec& spec);
// The same of a canary that runs: empty, or how the traffic of its side has outgrown its share.
std::string Outgrown(const CanaryTraffic& traffic, const CanarySpec& spec);

}  // namespace fulcrum

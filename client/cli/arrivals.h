// When an open-loop benchmark sends: a schedule fixed in advance, so that a slow node cannot slow
// its own load down.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>

namespace fulcrum::cli {

enum class ArrivalKind : uint8_t { kConstant, kPoisson, kBurst };

// A sequence of send times in seconds from the start, at `rate` a second in the mean. Burst: groups
// of `burst` calls at one instant, the instants evenly spaced.
class Arrivals {
 public:
  Arrivals(ArrivalKind kind, double rate, int burst, uint64_t seed)
      : kind_(kind), rate_(rate), burst_(burst), random_(seed) {}
  double Next();

 private:
  const ArrivalKind kind_;
  const double rate_;
  const int burst_;
  std::mt19937_64 random_;
  int64_t sent_ = 0;
  double time_ = 0;
};

}  // namespace fulcrum::cli

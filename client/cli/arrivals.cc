// Send times of each kind.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/arrivals.h"

#include <cmath>

namespace fulcrum::cli {

double Arrivals::Next() {
  const int64_t index = sent_++;
  switch (kind_) {
    case ArrivalKind::kConstant:
      return static_cast<double>(index) / rate_;
    case ArrivalKind::kBurst:
      return static_cast<double>(index - index % burst_) / rate_;
    case ArrivalKind::kPoisson: {
      // Exponential gaps by inversion; 1 - u is never 0.
      const double u = std::ldexp(static_cast<double>(random_() >> 11), -53);
      time_ -= std::log1p(-u) / rate_;
      return time_;
    }
  }
  return 0;
}

}  // namespace fulcrum::cli

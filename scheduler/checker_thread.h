// What the checkers' threads share: a stream of random numbers and their place behind everything
// that serves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>

#include "kernels/numerics/splitmix.h"

namespace fulcrum {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return SplitMix(state_ += kSplitMixStep); }
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

// Linux gives each thread its own niceness; where this fails the checks only run at normal
// priority. Against threads that serve at niceness 0 it gets a tenth of a core: enough for a
// canary's first batches to be graded on a machine that is busy with serving.
inline void LowerPriority() {
  constexpr int kNiceness = 10;
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
}

}  // namespace fulcrum

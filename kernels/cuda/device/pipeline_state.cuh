// A position in a ring of stages: the stage, and the parity that its mbarrier is waited for with,
// which changes each time round.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace fulcrum::cuda

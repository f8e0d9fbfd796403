// A place in a ring of stages, and whether it was passed an odd number of times: the parity its
// barrier is waited for with.
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

// One step of class mma (order.h) for a warp: 16 rows by 8 columns by 16 k.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/gemm/fragment.cuh"

namespace fulcrum::cuda {

inline constexpr int kMmaColumns = 8;

// c += a b. c: rows g, g, g + 8, g + 8 at columns 2 t, 2 t + 1, 2 t, 2 t + 1. b: column g at k 2 t,
// 2 t + 1 and at 2 t + 8, 2 t + 9.
__device__ __forceinline__ void Mma(float (&c)[4], const StepPairs& a, uint2 b) {
  MmaM16N8K16(c, a.pair, b);
}

}  // namespace fulcrum::cuda

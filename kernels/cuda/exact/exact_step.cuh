// The operations of class exact (order.h): a thread's part of one step, and the end of a segment.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/gemm/fragment.cuh"

namespace fulcrum::cuda {

// Rows g and g + 8 of a tile for one column: the thread's four k of the step, ascending. xs: the
// scaled activations at k 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
__device__ __forceinline__ void ExactStep(const StepPairs& weights, const float4& xs, float& row_g,
                                          float& row_g8) {
  float* const sums[2] = {&row_g, &row_g8};
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float& sum = *sums[row];
    sum = __fmaf_rn(Low(weights.pair[row]), xs.x, sum);
    sum = __fmaf_rn(High(weights.pair[row]), xs.y, sum);
    sum = __fmaf_rn(Low(weights.pair[2 + row]), xs.z, sum);
    sum = __fmaf_rn(High(weights.pair[2 + row]), xs.w, sum);
  }
}

// Two pairs of activations as F32, times the scale of their block.
template <bool kScaled>
__device__ __forceinline__ float4 Scaled(uint32_t low_pair, uint32_t high_pair, float scale) {
  const float4 x = {Low(low_pair), High(low_pair), Low(high_pair), High(high_pair)};
  if constexpr (!kScaled) return x;
  return {__fmul_rn(x.x, scale), __fmul_rn(x.y, scale), __fmul_rn(x.z, scale),
          __fmul_rn(x.w, scale)};
}

// (a0 + a2) + (a1 + a3) in each of four threads that are kStride lanes apart.
template <int kStride>
__device__ __forceinline__ float AddLanes(float sum) {
  sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2 * kStride));
  return __fadd_rn(sum, __shfl_xor_sync(~0u, sum, kStride));
}

}  // namespace fulcrum::cuda

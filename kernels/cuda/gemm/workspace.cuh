// The protocol by which thread blocks exchange sums through the workspace (launch.h). An empty word
// holds the sentinel. A reader polls a word until it differs from the sentinel, and then resets it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/global_memory.cuh"

namespace fulcrum::cuda {

inline constexpr uint32_t kEmptySentinel = 0xffffffffu;
__device__ __forceinline__ uint32_t AvoidSentinel(float sum) {
  const uint32_t bits = __float_as_uint(sum);
  return bits == kEmptySentinel ? 0x7fffffffu : bits;  // both are NaN
}
__device__ __forceinline__ bool AllArrived(const uint4& v) {
  return v.x != kEmptySentinel && v.y != kEmptySentinel && v.z != kEmptySentinel &&
         v.w != kEmptySentinel;
}

// Stores words `stride` apart, from this thread's first word on.
template <int kCount>
__device__ __forceinline__ void StoreWords(uint32_t* to, int stride,
                                           const float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    GlobalStoreRelaxed(to + i * stride, AvoidSentinel(values[i]));
  }
}
// Loads words; returns whether all of them were there.
template <int kCount>
__device__ __forceinline__ bool TryLoadWords(const uint32_t* from, int stride,
                                             float (&values)[kCount]) {
  bool arrived = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = __uint_as_float(GlobalLoadRelaxed(from + i * stride));
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    arrived = arrived && __float_as_uint(values[i]) != kEmptySentinel;
  return arrived;
}
template <int kCount>
__device__ __forceinline__ void ResetWords(uint32_t* at, int stride) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    GlobalStoreRelaxed(at + i * stride, kEmptySentinel);
  }
}

}  // namespace fulcrum::cuda

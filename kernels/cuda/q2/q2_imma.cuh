// One chunk of a tile of 16 rows times 8 columns by an integer tensor-core step, and where its
// operands are. Thread 4 g + t has rows g and g + 8 of columns 2 t and 2 t + 1.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/q2/q8_chunk.cuh"
#include "kernels/cuda/q2/q8_rows.h"

namespace fulcrum::cuda {

__device__ __forceinline__ uint32_t SharedLoadWord(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
  return v;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750 && __CUDA_ARCH__ < 800
__device__ __forceinline__ void ImmaHalf(int& low, int& high, uint32_t a, uint32_t b) {
  asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(low), "+r"(high)
      : "r"(a), "r"(b));
}
#endif

// sums = starts + codes times q.
__device__ __forceinline__ void Imma(int (&sums)[4], const uint32_t (&codes)[4], const uint2& q,
                                     const uint32_t (&starts)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%10, %11, %12, %13};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(codes[0]), "r"(codes[1]), "r"(codes[2]), "r"(codes[3]), "r"(q.x), "r"(q.y),
        "r"(starts[0]), "r"(starts[1]), "r"(starts[2]), "r"(starts[3]));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  for (int i = 0; i < 4; ++i) sums[i] = static_cast<int>(starts[i]);
  ImmaHalf(sums[0], sums[1], codes[0], q.x);
  ImmaHalf(sums[0], sums[1], codes[2], q.y);
  ImmaHalf(sums[2], sums[3], codes[1], q.x);
  ImmaHalf(sums[2], sums[3], codes[3], q.y);
#endif
}

// Where a thread reads quantised activations as QuantiseForTensorCores lays them out, in shared or
// in device memory; `at` bytes further than where it was made for.
template <bool kShared>
struct Q8Fragments {
  uint32_t words, constants;
  const std::byte* device;  // both in device memory: words, and constants from there

  __device__ __forceinline__ Q8Fragments(uint32_t shared, const std::byte* device_x, int lane)
      : words(kShared ? shared + lane * 8 : lane * 8),
        constants((kShared ? shared : 0) + kQ8ConstantsAt + lane % 4 * 16),
        device(device_x) {}

  __device__ __forceinline__ void Advance(int bytes) {
    words += bytes;
    constants += bytes;
  }
  // The thread's words of a chunk.
  __device__ __forceinline__ uint2 Words(int at) const {
    if constexpr (kShared) {
      uint2 v;
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(words + at));
      return v;
    } else {
      return *reinterpret_cast<const uint2*>(device + (words + at));
    }
  }
  // Offsets of columns 2 t and 2 t + 1, then their scales: floats.
  __device__ __forceinline__ uint4 Constants(int at) const {
    if constexpr (kShared) {
      return SharedLoad(constants + at);
    } else {
      return *reinterpret_cast<const uint4*>(device + (constants + at));
    }
  }
};

}  // namespace fulcrum::cuda

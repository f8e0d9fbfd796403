// A thread's part of a step of a tile (layout.h), as the operand of a tensor-core product or as
// F32.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/arithmetic.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/layout/layout.h"

namespace fulcrum::cuda {

// BF16 pairs of one step in the order of mma.m16n8k16's A operand: pair[0] row g, pair[1] row g + 8
// at k 2 t and 2 t + 1; pair[2] and pair[3] the same rows at 2 t + 8 and 2 t + 9.
struct StepPairs {
  uint32_t pair[4];
};

// Both halves times 2^120, exactly.
__device__ __forceinline__ uint32_t TimesTwoTo120(uint32_t pair) {
#if __CUDA_ARCH__ >= 800
  return MulBf16x2(pair, 0x7b807b80u);
#else
  const uint32_t low = __float_as_uint(__uint_as_float(pair << 16) * 0x1p120f);
  const uint32_t high = __float_as_uint(__uint_as_float(pair & 0xffff0000u) * 0x1p120f);
  return high | low >> 16;
#endif
}

// The NaN code reads as 480, which no other code does.
__device__ __forceinline__ uint32_t RestoreNan(uint32_t pair) {
  if ((pair & 0x7fffu) == 0x43f0u) pair |= 0x7fffu;
  if ((pair & 0x7fff0000u) == 0x43f00000u) pair |= 0x7fff0000u;
  return pair;
}

// Decodes a word of interleaved codes: rows g and g + 8, two k each. The masks leave sign, exponent
// and mantissa where BF16 has them, with an exponent that is too small by 120. Subnormal codes
// become BF16 subnormals.
template <bool kNan>
__device__ __forceinline__ void Undeal(uint32_t word, uint32_t& row_g, uint32_t& row_g8) {
  row_g = TimesTwoTo120(word & 0x87f087f0u);
  row_g8 = TimesTwoTo120(((word << 4) & 0x80f080f0u) | ((word >> 4) & 0x07000700u));
  if constexpr (kNan) {
    row_g = RestoreNan(row_g);
    row_g8 = RestoreNan(row_g8);
  }
}

// The two F32 of a BF16 pair.
__device__ __forceinline__ float Low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float High(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// A few steps of one tile in registers: the unit in which arms load weights.
//
// Load and LoadShared read from step `first` on, a multiple of kSteps. thread: the address of this
// thread's first 16 bytes of the block in shared memory.
template <bool kMayBeNan, int kStepsTogether>
struct Fp8Steps {
  static constexpr int kBlockBytes = kFp8BlockBytes, kSteps = kStepsTogether;
  static constexpr bool kScaled = true, kNan = kMayBeNan;
  static_assert(kSteps == 1 || kSteps == 2);
  uint32_t words[2 * kSteps];

  __device__ __forceinline__ void Load(const std::byte* block, int first, int lane) {
    static_assert(kSteps == 2);
    Take(__ldcs(reinterpret_cast<const uint4*>(block) + first / 2 * 32 + lane));
  }
  __device__ __forceinline__ void LoadShared(uint32_t thread, int first) {
    if constexpr (kSteps == 2) {
      Take(SharedLoad(thread + first / 2 * 512));
    } else {
      const uint2 one = SharedLoad64(thread + first / 2 * 512 + first % 2 * 8);
      words[0] = one.x, words[1] = one.y;
    }
  }
  __device__ __forceinline__ StepPairs Step(int step) const {
    StepPairs out;
    Undeal<kNan>(words[2 * step], out.pair[0], out.pair[1]);
    Undeal<kNan>(words[2 * step + 1], out.pair[2], out.pair[3]);
    return out;
  }

 private:
  __device__ __forceinline__ void Take(const uint4& two) {
    words[0] = two.x, words[1] = two.y, words[2] = two.z, words[3] = two.w;
  }
};
template <bool kNan>
using Fp8Quarter = Fp8Steps<kNan, 2>;

template <int kStepsTogether>
struct Bf16Steps {
  static constexpr int kBlockBytes = kBf16BlockBytes, kSteps = kStepsTogether;
  static constexpr bool kScaled = false, kNan = false;
  uint4 words[kSteps];

  __device__ __forceinline__ void Load(const std::byte* block, int first, int lane) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      words[i] = __ldcs(reinterpret_cast<const uint4*>(block) + (first + i) * 32 + lane);
    }
  }
  __device__ __forceinline__ void LoadShared(uint32_t thread, int first) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) words[i] = SharedLoad(thread + (first + i) * 512);
  }
  __device__ __forceinline__ StepPairs Step(int step) const {
    return {{words[step].x, words[step].z, words[step].y, words[step].w}};
  }
};
using Bf16Quarter = Bf16Steps<2>;

// One block of one tile.
template <class Quarter>
struct Fragment {
  static constexpr int kBlockBytes = Quarter::kBlockBytes;
  static constexpr bool kScaled = Quarter::kScaled;
  Quarter quarter[4];

  __device__ __forceinline__ void Load(const std::byte* block, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) quarter[i].Load(block, 2 * i, lane);
  }
  __device__ __forceinline__ StepPairs Step(int step) const {
    return quarter[step / 2].Step(step % 2);
  }
};
template <bool kNan>
using Fp8Fragment = Fragment<Fp8Quarter<kNan>>;
using Bf16Fragment = Fragment<Bf16Quarter>;

}  // namespace fulcrum::cuda

// Arithmetic instructions that CUDA C++ has no intrinsic for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

// Both halves of a BF16 pair times those of `factors`, each rounded once (sm_80 and later).
__device__ __forceinline__ uint32_t MulBf16x2(uint32_t pair, uint32_t factors) {
  uint32_t out = 0;
#if __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(factors));
#elif __CUDA_ARCH__ >= 800
  // Minus zero as the addend leaves every product as it is.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(pair), "r"(factors), "r"(0x80008000u));
#endif
  return out;
}

// Two F32 as a BF16 pair, rounded to nearest even; NaN becomes 0x7fff (sm_80 and later).
__device__ __forceinline__ uint32_t PackBf16x2(float low, float high) {
  uint32_t pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}

// 1 / x to within an ulp.
__device__ __forceinline__ float RcpApprox(float x) {
  float inverse;
  asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

}  // namespace fulcrum::cuda

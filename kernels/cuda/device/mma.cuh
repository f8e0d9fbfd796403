// Matrix products of one warp on the tensor cores, and loads of their operands from shared memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

// c += a b: BF16, 16 rows by 8 columns, 16 k (sm_80 and later). gemm/mma_step.cuh describes the
// fragments.
__device__ __forceinline__ void MmaM16N8K16(float (&c)[4], const uint32_t (&a)[4], uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750 && __CUDA_ARCH__ < 800
__device__ __forceinline__ void ImmaM8N8K16(int& low, int& high, uint32_t a, uint32_t b) {
  asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(low), "+r"(high)
      : "r"(a), "r"(b));
}
#endif

// sums = starts + a b: unsigned bytes by signed bytes, 16 rows by 8 columns, 32 k (sm_75 and
// later).
__device__ __forceinline__ void ImmaM16N8K32(int (&sums)[4], const uint32_t (&a)[4], const uint2& b,
                                             const uint32_t (&starts)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%10, %11, %12, %13};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(starts[0]),
        "r"(starts[1]), "r"(starts[2]), "r"(starts[3]));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  for (int i = 0; i < 4; ++i) sums[i] = static_cast<int>(starts[i]);
  ImmaM8N8K16(sums[0], sums[1], a[0], b.x);
  ImmaM8N8K16(sums[0], sums[1], a[2], b.y);
  ImmaM8N8K16(sums[2], sums[3], a[1], b.x);
  ImmaM8N8K16(sums[2], sums[3], a[3], b.y);
#endif
}

// Loads four matrices of 8 rows by 16 bytes from shared memory. Lane 8 i + r gives the address of
// row r of matrix i.
__device__ __forceinline__ uint4 LdMatrixX4(uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row));
  return v;
}

// Transposes an 8 x 8 matrix of 16-bit elements of which each thread holds two neighbours of a row.
__device__ __forceinline__ uint32_t MovMatrixTransposed(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

}  // namespace fulcrum::cuda

// One step of class mma (order.h) for a warp: 16 rows by 8 columns by 16 k.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/fragment.cuh"

namespace fulcrum::cuda {

inline constexpr int kMmaColumns = 8;

// c: rows g, g, g + 8, g + 8 at columns 2 t, 2 t + 1, 2 t, 2 t + 1. b: column g at k 2 t, 2 t + 1
// and at 2 t + 8, 2 t + 9.
__device__ __forceinline__ void Mma(float (&c)[4], const StepPairs& a, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.pair[0]), "r"(a.pair[1]), "r"(a.pair[2]), "r"(a.pair[3]), "r"(b.x), "r"(b.y));
}

// Four matrices of 8 rows by 16 bytes out of shared memory, as the b of two steps: x and y, then z
// and w. Lane 8 i + r gives the address of row r of matrix i.
__device__ __forceinline__ uint4 LoadMatrices(uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row));
  return v;
}

}  // namespace fulcrum::cuda

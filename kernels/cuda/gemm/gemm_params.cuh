// The arguments of a matrix product as kernels see them, and how kernels read activations and store
// results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/arithmetic.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/numerics/order.h"

namespace fulcrum::cuda {

struct GemmParams {
  const std::byte* codes;
  const float* scales;  // [N / 128][blocks], null for bf16
  const uint16_t* x;    // BF16 [m][x_pitch]
  int64_t x_pitch;      // elements
  void* y;              // [m][y_pitch]
  int64_t y_pitch;      // elements
  int64_t n;
  int tiles, blocks, segment_blocks, segments;
  int m;
  bool y_f32;
};

inline cudaStream_t StreamOf(const ArmArgs& args) {
  return static_cast<const CudaContext*>(args.context)->stream;
}

inline GemmParams MakeGemmParams(const ArmArgs& args) {
  const auto& weight = *static_cast<const CudaWeight*>(args.weight);
  const TileLayout& layout = weight.layout();
  return {.codes = weight.codes(),
          .scales = weight.scales(),
          .x = static_cast<const uint16_t*>(args.activations),
          .x_pitch = args.activation_pitch,
          .y = args.output,
          .y_pitch = args.output_pitch,
          .n = layout.n,
          .tiles = static_cast<int>((layout.n + kTileRows - 1) / kTileRows),
          .blocks = static_cast<int>(layout.blocks),
          .segment_blocks = static_cast<int>(numerics::SegmentBlocks(layout.k)),
          .segments = static_cast<int>(numerics::Segments(layout.k)),
          .m = args.m,
          .y_f32 = args.output_type == DType::kF32};
}

// Allows a kernel to use that many bytes of dynamic shared memory.
template <class Kernel>
cudaError_t AllowShared(Kernel kernel, size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

// The first block of a tile; its next is kPanelTiles blocks further.
__device__ __forceinline__ const std::byte* TileCodes(const GemmParams& p, int tile,
                                                      int block_bytes) {
  return p.codes +
         (int64_t{tile / kPanelTiles} * p.blocks * kPanelTiles + tile % kPanelTiles) * block_bytes;
}

// Elements k, k + 1 and k + 8, k + 9 of a row as two pairs.
__device__ __forceinline__ uint2 LoadActivations(const uint16_t* row, int k) {
  const auto* const at = reinterpret_cast<const uint32_t*>(row + k);
  return make_uint2(__ldg(at), __ldg(at + 4));
}

// The last operations on every result: add 0, make NaN canonical, round once. BF16 is in the low
// half.
__device__ __forceinline__ uint32_t ResultBits(float sum, bool f32) {
  const float value = __fadd_rn(sum, 0.0f);
  const bool nan = value != value;
  const uint32_t bits = nan ? 0x7fffffffu : __float_as_uint(value);
  if (f32) return bits;
  return (nan ? bits : bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
__device__ __forceinline__ void StoreResult(void* y, bool f32, int64_t at, float sum) {
  const uint32_t bits = ResultBits(sum, f32);
  if (f32) {
    static_cast<uint32_t*>(y)[at] = bits;
  } else {
    static_cast<uint16_t*>(y)[at] = static_cast<uint16_t>(bits);
  }
}
__device__ __forceinline__ void StoreResult(const GemmParams& p, int m, int64_t n, float sum) {
  StoreResult(p.y, p.y_f32, m * p.y_pitch + n, sum);
}

// Two results as BF16, in the low and the high half. From sm_80 on one instruction makes NaN
// canonical and rounds as above.
__device__ __forceinline__ uint32_t ResultPair(float low, float high) {
#if __CUDA_ARCH__ >= 800
  const float second = __fadd_rn(high, 0.0f);
  return PackBf16x2(__fadd_rn(low, 0.0f), second);
#else
  return ResultBits(low, false) | ResultBits(high, false) << 16;
#endif
}
// Whether two neighbours of a row, the first at an even n, may be stored as one word.
__device__ __forceinline__ bool StoresPairs(const GemmParams& p) {
  return !p.y_f32 && p.y_pitch % 2 == 0 && reinterpret_cast<uintptr_t>(p.y) % 4 == 0;
}
__device__ __forceinline__ void StorePair(const GemmParams& p, int m, int64_t n, uint32_t pair) {
  *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.y) + m * p.y_pitch + n) = pair;
}

// Adds segment sums in shared memory, [segment][column][row], in ascending order and stores the
// results.
template <int kRows>
__device__ __forceinline__ void AddSegmentsAndStore(const GemmParams& p, const float* sums,
                                                    int columns, int64_t first_row,
                                                    int first_column) {
  for (int i = threadIdx.x; i < columns * kRows; i += blockDim.x) {
    const int64_t n = first_row + i % kRows;
    const int m = first_column + i / kRows;
    if (n >= p.n || m >= p.m) continue;
    float sum = sums[i];
    for (int s = 1; s < p.segments; ++s) sum = __fadd_rn(sum, sums[s * columns * kRows + i]);
    StoreResult(p, m, n, sum);
  }
}

}  // namespace fulcrum::cuda

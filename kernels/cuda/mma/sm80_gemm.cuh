// Class mma for fp8 and bf16 (order.h): weights are the 16-row operand of mma.m16n8k16 and
// activations the 8-column one, so one instruction serves 8 columns. One warp computes a K segment
// of a few tiles; the warps of a thread block compute the segments of one product. Each block of
// 128 K has an inner sum of its own, which is folded with the block's scale.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/device/block_trace.cuh"
#include "kernels/cuda/gemm/fragment.cuh"
#include "kernels/cuda/gemm/gemm_params.cuh"
#include "kernels/cuda/gemm/mma_step.cuh"
#include "kernels/cuda/gemm/tile_weights.cuh"

namespace fulcrum::cuda {

inline constexpr int kMmaMaxWarps = 8;

// A segment's sums into shared memory, [segment][column][row].
template <int kTiles, int kColumnTiles>
__device__ __forceinline__ void StoreSegment(const float (&outer)[kTiles][kColumnTiles][4],
                                             int segment, int lane, float* sums) {
  constexpr int kRows = kTiles * kTileRows, kColumns = kColumnTiles * kMmaColumns;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = c * kMmaColumns + lane % 4 * 2 + e % 2;
        sums[(segment * kColumns + column) * kRows + i * kTileRows + e / 2 * 8 + lane / 4] =
            outer[i][c][e];
      }
    }
  }
}

template <class Weights, int kTiles, int kColumnTiles>
__global__ void __launch_bounds__(kMmaMaxWarps * 32) Sm80GemmKernel(GemmParams p) {
#if __CUDA_ARCH__ >= 800
  [[maybe_unused]] const BlockTrace<Weights> trace;
  extern __shared__ float sums[];  // [segment][column][row]
  constexpr int kRows = kTiles * kTileRows, kColumns = kColumnTiles * kMmaColumns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int first_tile = static_cast<int>(blockIdx.x) * kTiles;
  TileWeights<Weights, kTiles> tiles(p, first_tile, lane);
  const uint16_t* x[kColumnTiles];  // of column g of each
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
    x[c] = p.x + min(c * kMmaColumns + lane / 4, p.m - 1) * p.x_pitch;
  }

  for (int segment = warp; segment < p.segments; segment += warps) {
    const int first = segment * p.segment_blocks, end = min(first + p.segment_blocks, p.blocks);
    float outer[kTiles][kColumnTiles][4] = {};
    tiles.Load(first);
#pragma unroll 1
    for (int block = first; block < end; ++block) {
      Weights weights[kTiles];
      tiles.Take(block, end, weights);
      const float scale = tiles.Scale(block);
      float inner[kTiles][kColumnTiles][4] = {};
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int k = block * kBlockK + step * kStepK + lane % 4 * 2;
        uint2 columns[kColumnTiles];
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) columns[c] = LoadActivations(x[c], k);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const StepPairs pairs = weights[i].Step(step);
#pragma unroll
          for (int c = 0; c < kColumnTiles; ++c) Mma(inner[i][c], pairs, columns[c]);
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            outer[i][c][e] = __fmaf_rn(scale, inner[i][c][e], outer[i][c][e]);
          }
        }
      }
    }
    StoreSegment<kTiles, kColumnTiles>(outer, segment, lane, sums);
  }
  __syncthreads();
  AddSegmentsAndStore<kRows>(p, sums, kColumns, int64_t{first_tile} * kTileRows, 0);
#endif
}

// m <= 8 kColumnTiles.
template <class Weights, int kTiles, int kColumnTiles>
cudaError_t LaunchSm80Gemm(const GemmParams& p, cudaStream_t stream) {
  const auto kernel = &Sm80GemmKernel<Weights, kTiles, kColumnTiles>;
  const size_t shared = size_t{4} * p.segments * kColumnTiles * kMmaColumns * kTiles * kTileRows;
  if (const cudaError_t error = AllowShared(kernel, shared); error != cudaSuccess) {
    return error;
  }
  const int groups = (p.tiles + kTiles - 1) / kTiles;
  kernel<<<groups, std::min(p.segments, kMmaMaxWarps) * 32, shared, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace fulcrum::cuda

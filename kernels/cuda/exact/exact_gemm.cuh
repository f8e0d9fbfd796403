// Class exact for fp8 and bf16 (order.h). One warp computes a K segment of a few tiles. Thread 4 g
// + t is lane t of the order for rows g and g + 8 of each tile, so a weight costs one multiply-add
// a column and a segment ends with two shuffles. The warps of a thread block compute the segments
// of one product.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/exact/exact_step.cuh"
#include "kernels/cuda/gemm/gemm_params.cuh"
#include "kernels/cuda/gemm/tile_weights.cuh"

namespace fulcrum::cuda {

inline constexpr int kMaxWarps = 8;

template <class Weights, int kTiles, int kColumns>
__global__ void __launch_bounds__(kMaxWarps * 32) ExactGemmKernel(GemmParams p) {
  extern __shared__ float sums[];  // [segment][column][row]
  constexpr int kRows = kTiles * kTileRows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int chunks = (p.m + kColumns - 1) / kColumns;
  const int first_column = static_cast<int>(blockIdx.x) % chunks * kColumns;
  const int first_tile = static_cast<int>(blockIdx.x) / chunks * kTiles;
  TileWeights<Weights, kTiles> tiles(p, first_tile, lane);
  const uint16_t* x[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) x[c] = p.x + min(first_column + c, p.m - 1) * p.x_pitch;

  for (int segment = warp; segment < p.segments; segment += warps) {
    const int first = segment * p.segment_blocks, end = min(first + p.segment_blocks, p.blocks);
    float acc[kTiles][2][kColumns] = {};
    tiles.Load(first);
#pragma unroll 1
    for (int block = first; block < end; ++block) {
      Weights weights[kTiles];
      tiles.Take(block, end, weights);
      const float scale = tiles.Scale(block);
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int k = block * kBlockK + step * kStepK + lane % 4 * 2;
        StepPairs pairs[kTiles];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) pairs[i] = weights[i].Step(step);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const uint2 v = LoadActivations(x[c], k);
          const float4 xs = Scaled<Weights::kScaled>(v.x, v.y, scale);
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            ExactStep(pairs[i], xs, acc[i][0][c], acc[i][1][c]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const float sum = AddLanes<1>(acc[i][row][c]);
          if (lane % 4 == c % 4) {
            sums[(segment * kColumns + c) * kRows + i * kTileRows + row * 8 + lane / 4] = sum;
          }
        }
      }
    }
  }
  __syncthreads();
  AddSegmentsAndStore<kRows>(p, sums, kColumns, int64_t{first_tile} * kTileRows, first_column);
}

template <class Weights, int kTiles, int kColumns>
cudaError_t LaunchExactGemm(const GemmParams& p, cudaStream_t stream) {
  const auto kernel = &ExactGemmKernel<Weights, kTiles, kColumns>;
  const size_t shared = size_t{4} * p.segments * kColumns * kTiles * kTileRows;
  if (const cudaError_t error = AllowShared(kernel, shared); error != cudaSuccess) {
    return error;
  }
  const int chunks = (p.m + kColumns - 1) / kColumns;
  const int groups = (p.tiles + kTiles - 1) / kTiles;
  kernel<<<groups * chunks, std::min(p.segments, kMaxWarps) * 32, shared, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace fulcrum::cuda

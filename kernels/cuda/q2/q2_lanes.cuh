// Class exact for q2_0 (order.h) with a lane for each virtual thread. A lane has whole chunks of
// pairs of rows and computes their integer sums with four-way dot products. Two kernels: a thread
// block is the 128 virtual threads of a few rows, or a warp plays all of them for four rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device/grid_dependency.cuh"
#include "kernels/cuda/gemm/gemm_params.cuh"
#include "kernels/cuda/layout/q2_layout.h"
#include "kernels/cuda/q2/q8_chunk.cuh"
#include "kernels/cuda/q2/q8_rows.h"
#include "kernels/numerics/order.h"

namespace fulcrum::cuda {

struct Q2LaneProduct {
  const std::byte* tiles;
  const std::byte* x;  // QuantiseForLanes, m rows
  void* y;
  int64_t y_pitch, n;
  Q2Layout layout;
  int m;
  bool y_f32;
};

// A lane's chunk of kPairs neighbouring pairs of rows.
template <int kPairs>
struct Q2LaneChunk {
  uint4 codes[kPairs];
  uint32_t scales[kPairs];

  __device__ __forceinline__ void Load(const Q2Layout& layout, const std::byte* tile,
                                       int first_pair, int chunk) {
    const std::byte* const code = tile + layout.CodesAt(first_pair, chunk);
    const std::byte* const scale = tile + layout.ScalesAt(first_pair, chunk);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      codes[i] = __ldg(reinterpret_cast<const uint4*>(code + i * layout.code_pitch));
      scales[i] = __ldg(reinterpret_cast<const uint32_t*>(scale + i * layout.scale_pitch));
    }
  }
};

// v[row][column] of the chunk's virtual thread, rows in pairs.
template <int kPairs, int kColumns>
__device__ __forceinline__ void AddChunk(const Q2LaneProduct& p, const Q2LaneChunk<kPairs>& w,
                                         int chunk, float (&v)[2 * kPairs][kColumns]) {
  constexpr uint32_t kMask = 0x03030303u;
  uint32_t codes[kPairs][4][4];  // [pair][word][register of q2_layout.h]
  float scales[2 * kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const uint32_t words[4] = {w.codes[i].x, w.codes[i].y, w.codes[i].z, w.codes[i].w};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int r = 0; r < 4; ++r) codes[i][t][r] = words[t] >> (2 * r) & kMask;
    }
    const float2 d2 = __half22float2(*reinterpret_cast<const __half2*>(&w.scales[i]));
    scales[2 * i] = d2.x;
    scales[2 * i + 1] = d2.y;
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const std::byte* const x = p.x + min(c, p.m - 1) * Q8LaneRowBytes(p.layout.chunks);
    // Plain loads, see q8_rows.cu.
    const uint4 first = *(reinterpret_cast<const uint4*>(x) + chunk);
    const uint4 second = *(reinterpret_cast<const uint4*>(x) + p.layout.chunks + chunk);
    const float2 offset_and_scale =
        *(reinterpret_cast<const float2*>(x + int64_t{p.layout.chunks} * 32) + chunk);
    const uint32_t q[8] = {first.x,  first.y,  first.z,  first.w,
                           second.x, second.y, second.z, second.w};
#pragma unroll
    for (int row = 0; row < 2 * kPairs; ++row) {
      int sum = kRounderBits;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sum = __dp4a(static_cast<int>(codes[row / 2][t][2 * half + row % 2]),
                       static_cast<int>(q[2 * t + half]), sum);
        }
      }
      const float s = __fsub_rn(__int_as_float(sum), offset_and_scale.x);
      v[row][c] = __fmaf_rn(__fmul_rn(scales[row], offset_and_scale.y), s, v[row][c]);
    }
  }
}

__device__ __forceinline__ float Butterfly(float sum) {
#pragma unroll
  for (int stride = 16; stride > 0; stride /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, stride));
  }
  return sum;
}

// All lanes have all values; lane i stores value i, of row i % kRows and column i / kRows.
template <int kRows, int kColumns>
__device__ __forceinline__ void StoreFromLanes(const Q2LaneProduct& p, int tile, int first_pair,
                                               const float (&sums)[kRows][kColumns]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float own = 0;
#pragma unroll
  for (int i = 0; i < kRows * kColumns; ++i) {
    if (lane == i) own = sums[i % kRows][i / kRows];
  }
  const int row = lane % kRows, column = lane / kRows;
  const int64_t n = int64_t{tile} * kQ2TileRows + first_pair + row / 2 + row % 2 * kQ2Pairs;
  if (column < p.m && column < kColumns && n < p.n) {
    StoreResult(p.y, p.y_f32, column * p.y_pitch + n, own);
  }
}

inline constexpr int kQ2LaneThreads = 128;

// Four warps with four rows of the tile each. Lane l plays the virtual threads l, 32 + l, 64 + l
// and 96 + l, one after the other.
template <int kColumns>
__global__ void __launch_bounds__(kQ2LaneThreads, 3)
    Q2WarpRows(const __grid_constant__ Q2LaneProduct p) {
  constexpr int kPairs = 2, kRows = 2 * kPairs, kTurns = kQ2Threads / 32;
  LaunchDependentGrids();
  const int tile = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  const int first_pair = static_cast<int>(threadIdx.x) / 32 * kPairs;
  const std::byte* const codes = p.tiles + int64_t{tile} * p.layout.TileBytes();
  // The first chunks of all virtual threads, at small K the only ones, are loaded at once.
  Q2LaneChunk<kPairs> first[kTurns] = {};
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int own = turn * 32 + lane;
    if (own < p.layout.chunks) first[turn].Load(p.layout, codes, first_pair, own);
  }
  WaitOnDependentGrids();
  float sums[kRows][kColumns];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int own = turn * 32 + lane;
    float v[kRows][kColumns] = {};
    if (own < p.layout.chunks) AddChunk<kPairs, kColumns>(p, first[turn], own, v);
#pragma unroll 1
    for (int chunk = own + kQ2Threads; chunk < p.layout.chunks; chunk += kQ2Threads) {
      Q2LaneChunk<kPairs> w;
      w.Load(p.layout, codes, first_pair, chunk);
      AddChunk<kPairs, kColumns>(p, w, chunk, v);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sums[row][c] = turn == 0 ? v[row][c] : __fadd_rn(sums[row][c], v[row][c]);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[row][c] = Butterfly(sums[row][c]);
  }
  StoreFromLanes<kRows, kColumns>(p, tile, first_pair, sums);
}

// A thread block is the 128 virtual threads of kPairs pairs of a tile's rows. kPairs is more than
// one where no virtual thread has a second chunk.
template <int kPairs, int kColumns>
__global__ void __launch_bounds__(kQ2LaneThreads, 4)
    Q2ThreadRows(const __grid_constant__ Q2LaneProduct p) {
  constexpr int kRows = 2 * kPairs, kValues = kRows * kColumns, kWarps = kQ2LaneThreads / 32;
  __shared__ float others[kWarps - 1][kValues][32];
  LaunchDependentGrids();
  constexpr int kParts = kQ2Pairs / kPairs;  // thread blocks of a tile
  const int tile = static_cast<int>(blockIdx.x) / kParts;
  const int first_pair = static_cast<int>(blockIdx.x) % kParts * kPairs;
  const int own = static_cast<int>(threadIdx.x), lane = own % 32, warp = own / 32;
  const std::byte* const codes = p.tiles + int64_t{tile} * p.layout.TileBytes();
  Q2LaneChunk<kPairs> next = {};
  if (own < p.layout.chunks) next.Load(p.layout, codes, first_pair, own);
  WaitOnDependentGrids();
  float v[kRows][kColumns] = {};
  if constexpr (kPairs > 1) {  // no virtual thread has a second chunk
    if (own < p.layout.chunks) AddChunk<kPairs, kColumns>(p, next, own, v);
  } else {
#pragma unroll 1
    for (int chunk = own; chunk < p.layout.chunks; chunk += kQ2Threads) {
      const Q2LaneChunk<kPairs> w = next;
      if (chunk + kQ2Threads < p.layout.chunks) {
        next.Load(p.layout, codes, first_pair, chunk + kQ2Threads);
      }
      AddChunk<kPairs, kColumns>(p, w, chunk, v);
    }
  }
  if (warp > 0) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) others[warp - 1][i][lane] = v[i % kRows][i / kRows];
  }
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    float& sum = v[i % kRows][i / kRows];
#pragma unroll
    for (int other = 0; other < kWarps - 1; ++other) {
      sum = __fadd_rn(sum, others[other][i][lane]);
    }
    sum = Butterfly(sum);
  }
  StoreFromLanes<kRows, kColumns>(p, tile, first_pair, v);
}

}  // namespace fulcrum::cuda

// Class w8a8 on sm_90a: E4M3 activations (quantise.h) times E4M3 weights in rows, for any M, N, K.
//
// A thread block multiplies 128 tokens with kColumns weight rows at a time, a warpgroup 64 tokens;
// a third warpgroup copies, through tensor maps whose edges read as zeros. Both operands are in
// shared memory. The thread blocks of a cluster share the tokens: each copies half of them to both.
// A fresh inner sum a block of 128 K, then outer = fma(activation scale * weight scale, inner,
// outer) over blocks in ascending order. What a tile's width costs in idle multiprocessors depends
// on N and M, so there are several.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_launch.cuh"
#include "kernels/cuda/w8a8.h"

namespace fulcrum::cuda {

inline constexpr int kTokenBytes = kTokenTile * kBlockK;

template <int kColumns>
inline constexpr int kW8A8Stage = kTokenBytes + kColumns* kBlockK;

// Two neighbours of one row.
__device__ __forceinline__ void StorePair(const Product& p, int m, int64_t n, float a, float b) {
  if (m >= p.m || n >= p.n) return;
  if (!p.y_f32 && p.y_pitch % 2 == 0 && reinterpret_cast<uintptr_t>(p.y) % 4 == 0 && n + 1 < p.n) {
    static_cast<uint32_t*>(p.y)[(m * p.y_pitch + n) / 2] =
        ResultBits(a, false) | ResultBits(b, false) << 16;
    return;
  }
  StoreResult(p, m, n, a);
  if (n + 1 < p.n) StoreResult(p, m, n + 1, b);
}

template <int kColumns>
__global__ void __launch_bounds__(kTileThreads, 1)
    W8A8Product(Product p, const float* token_scales, int64_t token_pitch, TilePlan plan,
                const __grid_constant__ CUtensorMap tokens,
                const __grid_constant__ CUtensorMap weights) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte shared[];
  constexpr int kTiles = kColumns / 8, kStage = kW8A8Stage<kColumns>;
  const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int rank = static_cast<int>(ClusterRank());
  const int clusters = static_cast<int>(gridDim.x) / kTileCluster;
  const uint32_t ring = SharedAddress(shared);
  const uint32_t full = ring + plan.stages * kStage, empty = full + plan.stages * 8;
  const auto first_token = [&](int tile) { return tile % plan.column_tiles * kTokenTile; };
  const auto first_column = [&](int tile) {
    return (tile / plan.column_tiles * kTileCluster + rank) * kColumns;
  };

  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      BarrierInit(full + 8 * i, 1);
      BarrierInit(empty + 8 * i, kTileCluster * kTileWarps);
    }
    BarriersReady();
  }
  ClusterSync();

  if (warp >= kTileWarps) {
    GiveRegisters();
    Ring filling;
    for (int tile = static_cast<int>(blockIdx.x) / kTileCluster;
         threadIdx.x == kTileWarps * 32 && tile < plan.tiles; tile += clusters) {
      constexpr int kShare = kTokenTile / kTileCluster;
      for (int block = 0; block < p.blocks; ++block) {
        const uint32_t stage = ring + filling.stage * kStage;
        const uint32_t barrier = full + 8 * filling.stage;
        BarrierWait(empty + 8 * filling.stage, filling.phase ^ 1);
        BarrierExpect(barrier, kStage);
        BoxCopyToAll(stage + rank * kShare * kBlockK, &tokens, block * kBlockK,
                     first_token(tile) + rank * kShare, barrier, (1 << kTileCluster) - 1);
        BoxCopy(stage + kTokenBytes, &weights, block * kBlockK, first_column(tile), barrier);
        filling.Next(plan.stages);
      }
    }
  } else {
    TakeRegisters();
    Ring reading;
    for (int tile = static_cast<int>(blockIdx.x) / kTileCluster; tile < plan.tiles;
         tile += clusters) {
      const int token = first_token(tile) + warp * kTileRows + lane / 4;
      const int column = first_column(tile);
      // A tile lies in one row of weight scales or in two neighbours.
      const int last_row = (static_cast<int>(p.n) - 1) / kScaleRows;
      const int scale_row = min(column / kScaleRows, last_row);
      const int next_row = min(scale_row + 1, last_row);
      const int of_next = (kScaleRows - column % kScaleRows) / 8;  // its first column tile
      const float* const own_scales = token_scales + token;
      float outer[kTiles][4] = {};
#pragma unroll 1
      for (int block = 0; block < p.blocks; ++block) {
        const float low = __ldg(own_scales + block * token_pitch);
        const float high = __ldg(own_scales + block * token_pitch + 8);
        const float scale = __ldg(p.scales + int64_t{scale_row} * p.blocks + block);
        const float next_scale = __ldg(p.scales + int64_t{next_row} * p.blocks + block);
        const uint32_t stage = ring + reading.stage * kStage;
        const uint32_t a = RowsDescriptor(stage + warp / 4 * (64 * kBlockK));
        const uint32_t b = RowsDescriptor(stage + kTokenBytes);
        float inner[kTiles][4] = {};
        BarrierWait(full + 8 * reading.stage, reading.phase);
        Pin(inner);
        WgmmaFence();
#pragma unroll
        for (int step = 0; step < kBlockK / 32; ++step) {
          WgmmaE4m3(inner, a + 2 * step, b + 2 * step, step > 0);
        }
        WgmmaCommit();
        WgmmaWait();
        Pin(inner);
        if (lane < kTileCluster) ClusterArrive(empty + 8 * reading.stage, lane);
        reading.Next(plan.stages);
        const float low_scale = low * scale, high_scale = high * scale;
        const float next_low = low * next_scale, next_high = high * next_scale;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const bool next = kScaleRows % kColumns != 0 && t >= of_next;
          const float s[2] = {next ? next_low : low_scale, next ? next_high : high_scale};
#pragma unroll
          for (int e = 0; e < 4; ++e) outer[t][e] = __fmaf_rn(s[e / 2], inner[t][e], outer[t][e]);
        }
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int64_t n = column + t * 8 + lane % 4 * 2;
        StorePair(p, token, n, outer[t][0], outer[t][1]);
        StorePair(p, token + 8, n, outer[t][2], outer[t][3]);
      }
    }
  }
  // Nobody leaves while the other thread block may still write here.
  ClusterSync();
#endif
}

// A launch over tiles of kColumns weight rows.
template <int kColumns>
TilePlan W8A8Plan(const Product& p, const CudaContext& context) {
  TilePlan plan = {};
  const int64_t columns = kTileCluster * kColumns;
  plan.column_tiles = (p.m + kTokenTile - 1) / kTokenTile;
  plan.tiles = plan.column_tiles * static_cast<int>((p.n + columns - 1) / columns);
  plan.stages = std::min(8, context.max_shared_bytes / (kW8A8Stage<kColumns> + 16));
  return plan;
}

// What it takes, in columns that one multiprocessor multiplies one after the other; storing a tile
// costs as much as some more.
template <int kColumns>
int64_t W8A8Cost(const Product& p, const CudaContext& context) {
  const int clusters = context.sm_count / kTileCluster;
  const int rounds = (W8A8Plan<kColumns>(p, context).tiles + clusters - 1) / clusters;
  return int64_t{rounds} * (kColumns + 8);
}

// rows: the weight's codes, [N][blocks * 128].
template <int kColumns>
cudaError_t LaunchW8A8(const Product& p, const std::byte* rows, const QuantisedRows& x,
                       const CudaContext& context) {
  const TilePlan plan = W8A8Plan<kColumns>(p, context);
  const int64_t k = int64_t{p.blocks} * kBlockK;
  CUtensorMap tokens, weights;
  if (const cudaError_t error = DescribeCodes(x.codes, p.m, k, kTokenTile / kTileCluster, &tokens);
      error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = DescribeCodes(rows, p.n, k, kColumns, &weights);
      error != cudaSuccess) {
    return error;
  }
  const auto kernel = &W8A8Product<kColumns>;
  const int shared = plan.stages * (kW8A8Stage<kColumns> + 16);
  if (const cudaError_t error = AllowShared(kernel, shared); error != cudaSuccess) return error;
  return LaunchClusters(kernel, std::min(plan.tiles, context.sm_count / kTileCluster), kTileThreads,
                        shared, context.stream, p, x.scales, x.scale_pitch, plan, tokens, weights);
}

}  // namespace fulcrum::cuda

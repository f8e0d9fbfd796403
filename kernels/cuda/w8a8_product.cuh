// Class w8a8 on sm_90a: E4M3 activations (quantise.h) times E4M3 weights in rows, for any M, N, K.
//
// A thread block multiplies 128 tokens with kColumns weight rows at a time, a warpgroup 64 tokens;
// a third warpgroup copies, through tensor maps whose edges read as zeros. Both operands are in
// shared memory. The thread blocks of a cluster share the tokens: each copies half of them to both.
// A fresh inner sum a block of 128 K, two in turn, then outer = fma(activation scale * weight
// scale, inner, outer) over blocks in ascending order. What a tile's width costs in idle
// multiprocessors depends on N and M, so there are several.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_launch.cuh"
#include "kernels/cuda/w8a8.h"

namespace fulcrum::cuda {

inline constexpr int kTokenBytes = kTokenTile * kBlockK;
inline constexpr int kStageExtra = kTokenTile * 4 + 16;  // a stage's scales and barriers

template <int kColumns>
inline constexpr int kW8A8Stage = kTokenBytes + kColumns* kBlockK;

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
  // After the stages, of each: the scales of its tokens, its barriers.
  float* const shared_scales = reinterpret_cast<float*>(shared + plan.stages * kStage);
  const uint32_t scales_at = ring + plan.stages * kStage;
  const uint32_t full = scales_at + plan.stages * kTokenTile * 4, empty = full + plan.stages * 8;
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
    const uint64_t policy = ReadOften();
    Ring filling;
    for (int tile = static_cast<int>(blockIdx.x) / kTileCluster;
         threadIdx.x == kTileWarps * 32 && tile < plan.tiles; tile += clusters) {
      constexpr int kShare = kTokenTile / kTileCluster;
      for (int block = 0; block < p.blocks; ++block) {
        const uint32_t stage = ring + filling.stage * kStage;
        const uint32_t barrier = full + 8 * filling.stage;
        BarrierWait(empty + 8 * filling.stage, filling.phase ^ 1);
        BarrierExpect(barrier, kStage + kTokenTile * 4);
        BoxCopyToAll(stage + rank * kShare * kBlockK, &tokens, block * kBlockK,
                     first_token(tile) + rank * kShare, barrier, (1 << kTileCluster) - 1);
        BoxCopy(stage + kTokenBytes, &weights, block * kBlockK, first_column(tile), barrier);
        BulkCopy(scales_at + filling.stage * kTokenTile * 4,
                 token_scales + block * token_pitch + first_token(tile), kTokenTile * 4, barrier,
                 policy);
        filling.Next(plan.stages);
      }
    }
  } else {
    TakeRegisters();
    // A tile lies in one row of weight scales or in two neighbours: 32 blocks of both at a time,
    // one a lane, asked for a while before they are needed.
    const auto row_of = [&](int tile, int next) {
      return min(first_column(tile) / kScaleRows + next, (static_cast<int>(p.n) - 1) / kScaleRows);
    };
    const auto scale_of = [&](int tile, int next, int block) {
      return tile < plan.tiles && block + lane < p.blocks
                 ? __ldg(p.scales + int64_t{row_of(tile, next)} * p.blocks + block + lane)
                 : 0.0f;
    };
    int tile = static_cast<int>(blockIdx.x) / kTileCluster;
    float scale = scale_of(tile, 0, 0), next_scale = scale_of(tile, 1, 0);
    float scale_ahead = 0, next_scale_ahead = 0;
    Ring issuing, finishing;
    float outer[kTiles][4];
    const auto issue = [&](float(&inner)[kTiles][4], float2& of_tokens) {
      const uint32_t stage = ring + issuing.stage * kStage;
      const uint32_t a = RowsDescriptor(stage + warp / 4 * (64 * kBlockK));
      const uint32_t b = RowsDescriptor(stage + kTokenBytes);
      BarrierWait(full + 8 * issuing.stage, issuing.phase);
      const float* const own = shared_scales + issuing.stage * kTokenTile + warp * kTileRows;
      of_tokens = make_float2(own[lane / 4], own[lane / 4 + 8]);
      Pin(inner);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < kBlockK / 32; ++step) {
        WgmmaE4m3(inner, a + 2 * step, b + 2 * step, step > 0);
      }
      WgmmaCommit();
      issuing.Next(plan.stages);
    };
    const auto fold = [&](float(&inner)[kTiles][4], float2 of_tokens, int block, int of_next) {
      Pin(inner);
      if (lane < kTileCluster) ClusterArrive(empty + 8 * finishing.stage, lane);
      finishing.Next(plan.stages);
      const float s = __shfl_sync(~0u, scale, block % 32);
      const float s_next = __shfl_sync(~0u, next_scale, block % 32);
      const float low = of_tokens.x * s, high = of_tokens.y * s;
      const float low_next = of_tokens.x * s_next, high_next = of_tokens.y * s_next;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const bool beyond = kScaleRows % kColumns != 0 && t >= of_next;
        const float of_row[2] = {beyond ? low_next : low, beyond ? high_next : high};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          outer[t][e] = __fmaf_rn(of_row[e / 2], inner[t][e], outer[t][e]);
        }
      }
    };
    // Two blocks side by side: one is folded while the other is multiplied.
    const auto multiply = [&]<int kCount>(std::integral_constant<int, kCount>, int block,
                                          int of_next) {
      float inner[kCount][kTiles][4];
      float2 of_tokens[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) issue(inner[i], of_tokens[i]);
      if constexpr (kCount == 2) {
        WgmmaWait<1>();
        fold(inner[0], of_tokens[0], block, of_next);
      }
      WgmmaWait<0>();
      fold(inner[kCount - 1], of_tokens[kCount - 1], block + kCount - 1, of_next);
    };
    for (; tile < plan.tiles; tile += clusters) {
      const int token = first_token(tile) + warp * kTileRows + lane / 4;
      const int column = first_column(tile);
      const int of_next = (kScaleRows - column % kScaleRows) / 8;  // its first column tile
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) outer[t][e] = 0;
      }
#pragma unroll 1
      for (int group = 0; group < p.blocks; group += 32) {
        if (group > 0) {
          scale = scale_ahead;
          next_scale = next_scale_ahead;
        }
        const bool more = group + 32 < p.blocks;
        scale_ahead = scale_of(more ? tile : tile + clusters, 0, more ? group + 32 : 0);
        next_scale_ahead = scale_of(more ? tile : tile + clusters, 1, more ? group + 32 : 0);
        const int end = min(group + 32, p.blocks);
        int block = group;
#pragma unroll 1
        for (; block + 1 < end; block += 2) {
          multiply(std::integral_constant<int, 2>(), block, of_next);
        }
        if (block < end) multiply(std::integral_constant<int, 1>(), block, of_next);
      }
      scale = scale_ahead;
      next_scale = next_scale_ahead;
      const int64_t first = column + lane % 4 * 2;
      if (StoresPairs(p) && column + kColumns <= p.n) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const int64_t n = first + t * 8;
          if (token < p.m) StorePair(p, token, n, ResultPair(outer[t][0], outer[t][1]));
          if (token + 8 < p.m) StorePair(p, token + 8, n, ResultPair(outer[t][2], outer[t][3]));
        }
      } else {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int64_t n = first + t * 8 + e % 2;
            const int m = token + e / 2 * 8;
            if (n < p.n && m < p.m) StoreResult(p, m, n, outer[t][e]);
          }
        }
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
  plan.stages = std::min(8, context.max_shared_bytes / (kW8A8Stage<kColumns> + kStageExtra));
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
  const int shared = plan.stages * (kW8A8Stage<kColumns> + kStageExtra);
  if (const cudaError_t error = AllowShared(kernel, shared); error != cudaSuccess) return error;
  return LaunchClusters(kernel, std::min(plan.tiles, context.sm_count / kTileCluster), kTileThreads,
                        shared, context.stream, p, x.scales, x.scale_pitch, plan, tokens, weights);
}

}  // namespace fulcrum::cuda

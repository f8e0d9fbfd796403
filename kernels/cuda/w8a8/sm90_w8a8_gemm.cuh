// Class w8a8 on sm_90a: E4M3 activations (quantise.h) times E4M3 weights in rows, for any M, N, K.
//
// A thread block multiplies 128 or 256 tokens with kColumns weight rows at a time, a warpgroup 64
// tokens or twice 64; a third warpgroup copies, through tensor maps whose edges read as zeros. Both
// operands are in shared memory. The thread blocks of a cluster share the tokens: each copies half
// of them to both. A fresh inner sum a block of 128 K, then outer = fma(activation scale * weight
// scale, inner, outer) over blocks in ascending order. Larger tiles read less, smaller ones leave
// fewer multiprocessors idle at the end: which is best depends on N and M, so there are several.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/gemm/gemm_params.cuh"
#include "kernels/cuda/gemm/sm90_persistent.cuh"
#include "kernels/cuda/w8a8/w8a8.h"

namespace fulcrum::cuda {

inline constexpr int kTokenCluster = 2;  // thread blocks that share tokens

// A tile: kColumns weight rows times kHalves times 128 tokens. Bytes of shared memory; a stage
// begins with the tokens.
template <int kColumns, int kHalves>
struct W8A8Tile {
  static constexpr int kTokens = kHalves * 128;
  static constexpr int kTokenBytes = kTokens * kBlockK;
  static constexpr int kStage = kTokenBytes + kColumns * kBlockK;
  static constexpr int kExtra = kTokens * 4 + 16;  // a stage's scales and barriers
};

template <int kColumns, int kHalves>
__global__ void __launch_bounds__(kTileThreads, 1)
    Sm90W8A8GemmKernel(GemmParams p, const float* token_scales, int64_t token_pitch, TilePlan plan,
                       const __grid_constant__ CUtensorMap tokens,
                       const __grid_constant__ CUtensorMap weights) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte shared[];
  using Tile = W8A8Tile<kColumns, kHalves>;
  constexpr int kTiles = kColumns / 8, kStage = Tile::kStage, kTokens = Tile::kTokens;
  const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int rank = static_cast<int>(ClusterRank());
  const int clusters = static_cast<int>(gridDim.x) / kTokenCluster;
  const uint32_t ring = SharedAddress(shared);
  // After the stages, of each: the scales of its tokens, its barriers.
  float* const shared_scales = reinterpret_cast<float*>(shared + plan.stages * kStage);
  const uint32_t scales_at = ring + plan.stages * kStage;
  const uint32_t full = scales_at + plan.stages * kTokens * 4, empty = full + plan.stages * 8;
  const auto first_token = [&](int tile) { return tile % plan.column_tiles * kTokens; };
  const auto first_column = [&](int tile) {
    return (tile / plan.column_tiles * kTokenCluster + rank) * kColumns;
  };

  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      MbarrierInit(full + 8 * i, 1);
      MbarrierInit(empty + 8 * i, kTokenCluster * kTileWarps);
    }
    MbarrierInitFence();
  }
  ClusterSync();

  if (warp >= kTileWarps) {
    WarpgroupRegDealloc();
    const uint64_t policy = EvictNormalPolicy();
    const int scaled_tokens = (p.m + kTokensTogether - 1) / kTokensTogether * kTokensTogether;
    PipelineState filling;
    for (int tile = static_cast<int>(blockIdx.x) / kTokenCluster;
         threadIdx.x == kTileWarps * 32 && tile < plan.tiles; tile += clusters) {
      constexpr int kShare = kTokens / kTokenCluster;
      for (int block = 0; block < p.blocks; ++block) {
        const uint32_t stage = ring + filling.stage * kStage;
        const uint32_t barrier = full + 8 * filling.stage;
        MbarrierWait(empty + 8 * filling.stage, filling.parity ^ 1);
        const int scale_bytes = min(kTokens, scaled_tokens - first_token(tile)) * 4;
        MbarrierArriveExpectTx(barrier, kStage + scale_bytes);
        TensorCopyBoxMulticast(stage + rank * kShare * kBlockK, &tokens, block * kBlockK,
                               first_token(tile) + rank * kShare, barrier,
                               (1 << kTokenCluster) - 1);
        TensorCopyBox(stage + Tile::kTokenBytes, &weights, block * kBlockK, first_column(tile),
                      barrier);
        BulkCopy(scales_at + filling.stage * kTokens * 4,
                 token_scales + block * token_pitch + first_token(tile), scale_bytes, barrier,
                 policy);
        filling.Advance(plan.stages);
      }
    }
  } else {
    WarpgroupRegAlloc();
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
    int tile = static_cast<int>(blockIdx.x) / kTokenCluster;
    float scale = scale_of(tile, 0, 0), next_scale = scale_of(tile, 1, 0);
    float scale_ahead = 0, next_scale_ahead = 0;
    PipelineState issuing, finishing;
    float outer[kHalves][kTiles][4];
    const auto issue = [&](float(&inner)[kTiles][4], float2& of_tokens, int half) {
      const uint32_t stage = ring + issuing.stage * kStage;
      const uint32_t a = WgmmaDescriptor(stage + (half * 128 + warp / 4 * 64) * kBlockK);
      const uint32_t b = WgmmaDescriptor(stage + Tile::kTokenBytes);
      if (half == 0) MbarrierWait(full + 8 * issuing.stage, issuing.parity);
      const float* const own =
          shared_scales + issuing.stage * kTokens + half * 128 + warp * kTileRows;
      of_tokens = make_float2(own[lane / 4], own[lane / 4 + 8]);
      WarpgroupFenceOperand(inner);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < kBlockK / 32; ++step) {
        WgmmaE4m3(inner, a + 2 * step, b + 2 * step, step > 0);
      }
      WgmmaCommit();
      if (half == kHalves - 1) issuing.Advance(plan.stages);
    };
    const auto fold = [&](float(&inner)[kTiles][4], float2 of_tokens, int half, int block,
                          int of_next) {
      WarpgroupFenceOperand(inner);
      if (half == kHalves - 1) {
        __syncwarp();  // all lanes have read their scales
        if (lane < kTokenCluster) MbarrierArriveRemote(empty + 8 * finishing.stage, lane);
        finishing.Advance(plan.stages);
      }
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
          outer[half][t][e] = __fmaf_rn(of_row[e / 2], inner[t][e], outer[half][t][e]);
        }
      }
    };
    // Two blocks side by side where there are registers for it: one is folded while the next is
    // multiplied. Else the other warpgroup multiplies meanwhile.
    const auto multiply = [&]<int kCount>(std::integral_constant<int, kCount>, int block,
                                          int of_next) {
      float inner[kCount][kTiles][4];
      float2 of_tokens[kCount];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) issue(inner[i], of_tokens[i], half);
        if constexpr (kCount == 2) {
          WgmmaWait<1>();
          fold(inner[0], of_tokens[0], half, block, of_next);
        }
        WgmmaWait<0>();
        fold(inner[kCount - 1], of_tokens[kCount - 1], half, block + kCount - 1, of_next);
      }
    };
    constexpr int kTogether = kHalves == 1 ? 2 : 1;
    for (; tile < plan.tiles; tile += clusters) {
      const int token = first_token(tile) + warp * kTileRows + lane / 4;
      const int column = first_column(tile);
      const int of_next = (kScaleRows - column % kScaleRows) / 8;  // its first column tile
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int e = 0; e < 4; ++e) outer[half][t][e] = 0;
        }
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
        for (; block + kTogether <= end; block += kTogether) {
          multiply(std::integral_constant<int, kTogether>(), block, of_next);
        }
        if constexpr (kTogether > 1) {
          if (block < end) multiply(std::integral_constant<int, 1>(), block, of_next);
        }
      }
      scale = scale_ahead;
      next_scale = next_scale_ahead;
      const int64_t first = column + lane % 4 * 2;
      const bool pairs = StoresPairs(p) && column + kColumns <= p.n;
#pragma unroll
      for (int row = 0; row < 2 * kHalves; ++row) {
        const int m = token + row / 2 * 128 + row % 2 * 8;
        if (m >= p.m) continue;
        const auto& sums = outer[row / 2];
        const int e = row % 2 * 2;
        if (pairs) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            StorePair(p, m, first + t * 8, ResultPair(sums[t][e], sums[t][e + 1]));
          }
        } else {
#pragma unroll
          for (int i = 0; i < 2 * kTiles; ++i) {
            const int64_t n = first + i / 2 * 8 + i % 2;
            if (n < p.n) StoreResult(p, m, n, sums[i / 2][e + i % 2]);
          }
        }
      }
    }
  }
  // Nobody leaves while the other thread block may still write here.
  ClusterSync();
#endif
}

// A launch over such tiles.
template <int kColumns, int kHalves>
TilePlan W8A8Plan(const GemmParams& p, const CudaContext& context) {
  using Tile = W8A8Tile<kColumns, kHalves>;
  TilePlan plan = {};
  const int64_t columns = kTokenCluster * kColumns;
  plan.column_tiles = (p.m + Tile::kTokens - 1) / Tile::kTokens;
  plan.tiles = plan.column_tiles * static_cast<int>((p.n + columns - 1) / columns);
  plan.stages = std::min(8, context.max_shared_bytes / (Tile::kStage + Tile::kExtra));
  return plan;
}

// What it takes, in cycles a block of K: for each round of tiles seven a weight row and 50 more, as
// measured on an H200 for 80 to 136 rows (the products alone are four).
template <int kColumns, int kHalves>
int64_t W8A8Cost(const GemmParams& p, const CudaContext& context) {
  const int clusters = context.sm_count / kTokenCluster;
  const int rounds = (W8A8Plan<kColumns, kHalves>(p, context).tiles + clusters - 1) / clusters;
  return int64_t{rounds} * kHalves * (7 * kColumns + 50);
}

template <int kColumns, int kHalves>
cudaError_t LoadW8A8Kernel() {
  cudaFuncAttributes unused;  // asking for them loads the kernel
  return cudaFuncGetAttributes(&unused, &Sm90W8A8GemmKernel<kColumns, kHalves>);
}

// rows: the weight's codes, [N][blocks * 128].
template <int kColumns, int kHalves>
cudaError_t LaunchW8A8(const GemmParams& p, const std::byte* rows, const QuantisedRows& x,
                       const CudaContext& context) {
  using Tile = W8A8Tile<kColumns, kHalves>;
  const TilePlan plan = W8A8Plan<kColumns, kHalves>(p, context);
  const int64_t k = int64_t{p.blocks} * kBlockK;
  CUtensorMap tokens, weights;
  if (const cudaError_t error =
          DescribeCodes(x.codes, p.m, k, Tile::kTokens / kTokenCluster, &tokens);
      error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = DescribeCodes(rows, p.n, k, kColumns, &weights);
      error != cudaSuccess) {
    return error;
  }
  const auto kernel = &Sm90W8A8GemmKernel<kColumns, kHalves>;
  const int shared = plan.stages * (Tile::kStage + Tile::kExtra);
  if (const cudaError_t error = AllowShared(kernel, shared); error != cudaSuccess) return error;
  const int clusters = std::min(plan.tiles, context.sm_count / kTokenCluster);
  return LaunchKernel(kernel, TileGrid(clusters, kTokenCluster, shared), context.stream, p,
                      x.scales, x.scale_pitch, plan, tokens, weights);
}

}  // namespace fulcrum::cuda

// Class w8a8 on sm_90a: E4M3 activations (quantise.h) times E4M3 weights in rows, for any M, N, K.
//
// A thread block multiplies 128 or 256 tokens with kColumns weight rows at a time: one warpgroup
// has 64 tokens or twice 64, and a third warpgroup copies. Both operands are in shared memory. They
// come through tensor maps, which read zeros beyond the edges. The thread blocks of a cluster share
// the tokens: each copies half of them to both.
//
// Every block of 128 K has an inner sum of its own; then outer = fma(activation scale * weight
// scale, inner, outer) over blocks in ascending order. Larger tiles read less, smaller ones leave
// fewer multiprocessors idle at the end. The best tile depends on N and M, so there are several.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

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

// A tile: kColumns weight rows by kHalves times 128 tokens. Bytes of shared memory; a stage begins
// with the tokens.
template <int kColumns, int kHalves>
struct W8A8Tile {
  static constexpr int kTokens = kHalves * 128;
  static constexpr int kTokenBytes = kTokens * kBlockK;
  static constexpr int kStage = kTokenBytes + kColumns * kBlockK;
  static constexpr int kExtra = kTokens * 4 + 16;  // a stage's scales and barriers

  static_assert(kHalves == 1 || kHalves == 2, "registers hold the sums of two halves at most");
  static_assert(kColumns % 8 == 0, "a product has whole tiles of 8 columns");
  static_assert(kColumns <= kScaleRows + 8, "a tile has weight scales of two rows at most");
  static_assert(kTokenBytes / kTokenCluster % 1024 == 0 && kStage % 1024 == 0,
                "operands begin where the 128-byte swizzle repeats");
};

template <int kColumns, int kHalves>
struct Sm90W8A8Gemm {
  using Tile = W8A8Tile<kColumns, kHalves>;
  static constexpr int kTiles = kColumns / 8;  // column tiles
  static constexpr int kStage = Tile::kStage, kTokens = Tile::kTokens;
  // Blocks of K side by side where there are registers for it: one is folded while the next is
  // multiplied. Otherwise the other warpgroup multiplies meanwhile.
  static constexpr int kTogether = kHalves == 1 ? 2 : 1;
  using Sums = float[kTiles][4];

  const GemmParams& p;
  const TilePlan& plan;
  const int lane, warp, rank, clusters;
  // In shared memory after the stages, for each: the scales of its tokens, its barriers.
  float* const shared_scales;
  const uint32_t ring, scales_at, full, empty;

  // A multiplying warp's state. A tile has weight scales of one row or of two neighbours: those of
  // 32 blocks at a time, one a lane, loaded well before they are needed.
  float scale = 0, next_scale = 0, scale_ahead = 0, next_scale_ahead = 0;
  PipelineState issuing, finishing;
  float outer[kHalves][kTiles][4];

  __device__ __forceinline__ Sm90W8A8Gemm(const GemmParams& params, const TilePlan& tile_plan,
                                          std::byte* shared)
      : p(params),
        plan(tile_plan),
        lane(threadIdx.x % 32),
        warp(__shfl_sync(~0u, threadIdx.x / 32, 0)),
        rank(static_cast<int>(ClusterRank())),
        clusters(static_cast<int>(gridDim.x) / kTokenCluster),
        shared_scales(reinterpret_cast<float*>(shared + plan.stages * kStage)),
        ring(SharedAddress(shared)),
        scales_at(ring + plan.stages * kStage),
        full(scales_at + plan.stages * kTokens * 4),
        empty(full + plan.stages * 8) {}

  __device__ __forceinline__ int FirstTile() const {
    return static_cast<int>(blockIdx.x) / kTokenCluster;
  }
  __device__ __forceinline__ int FirstToken(int tile) const {
    return tile % plan.column_tiles * kTokens;
  }
  __device__ __forceinline__ int FirstColumn(int tile) const {
    return (tile / plan.column_tiles * kTokenCluster + rank) * kColumns;
  }

  __device__ __forceinline__ void InitBarriers() const {
    for (int i = 0; i < plan.stages; ++i) {
      MbarrierInit(full + 8 * i, 1);
      MbarrierInit(empty + 8 * i, kTokenCluster * kTileWarps);
    }
    MbarrierInitFence();
  }

  // One thread copies all stages of all tiles.
  __device__ __forceinline__ void Produce(const float* token_scales, int64_t token_pitch,
                                          const CUtensorMap& tokens,
                                          const CUtensorMap& weights) const {
    constexpr int kShare = kTokens / kTokenCluster;
    const uint64_t policy = EvictNormalPolicy();
    const int scaled_tokens = RoundedTokens(p.m), blocks = p.blocks, stages = plan.stages;
    PipelineState filling;
    for (int tile = FirstTile(); threadIdx.x == kTileWarps * 32 && tile < plan.tiles;
         tile += clusters) {
      const int token = FirstToken(tile), column = FirstColumn(tile);
      const int scale_bytes = min(kTokens, scaled_tokens - token) * 4;
      for (int block = 0; block < blocks; ++block) {
        const uint32_t stage = ring + filling.stage * kStage;
        const uint32_t barrier = full + 8 * filling.stage;
        MbarrierWait(empty + 8 * filling.stage, filling.parity ^ 1);
        MbarrierArriveExpectTx(barrier, kStage + scale_bytes);
        TensorCopyBoxMulticast(stage + rank * kShare * kBlockK, &tokens, block * kBlockK,
                               token + rank * kShare, barrier, (1 << kTokenCluster) - 1);
        TensorCopyBox(stage + Tile::kTokenBytes, &weights, block * kBlockK, column, barrier);
        BulkCopy(scales_at + filling.stage * kTokens * 4,
                 token_scales + block * token_pitch + token, scale_bytes, barrier, policy);
        filling.Advance(stages);
      }
    }
  }

  // A multiplying warp: its 16 tokens of each half, all tiles.
  __device__ __forceinline__ void Compute() {
    int tile = FirstTile();
    scale = LoadScale(tile, 0, 0);
    next_scale = LoadScale(tile, 1, 0);
    for (; tile < plan.tiles; tile += clusters) {
      const int token = FirstToken(tile) + warp * kTileRows + lane / 4;
      const int column = FirstColumn(tile);
      ClearSums();
#pragma unroll 1
      for (int group = 0; group < p.blocks; group += 32) {
        if (group > 0) TakeScalesAhead();
        const bool more = group + 32 < p.blocks;
        scale_ahead = LoadScale(more ? tile : tile + clusters, 0, more ? group + 32 : 0);
        next_scale_ahead = LoadScale(more ? tile : tile + clusters, 1, more ? group + 32 : 0);
        MultiplyGroup(group, column);
      }
      TakeScalesAhead();
      Store(token, column);
    }
  }

  // Of block `block` + lane: of the tile's first weight row of scales (next 0) or its second.
  __device__ __forceinline__ float LoadScale(int tile, int next, int block) const {
    if (tile >= plan.tiles || block + lane >= p.blocks) return 0.0f;
    const int row =
        min(FirstColumn(tile) / kScaleRows + next, (static_cast<int>(p.n) - 1) / kScaleRows);
    return __ldg(p.scales + int64_t{row} * p.blocks + block + lane);
  }
  __device__ __forceinline__ void TakeScalesAhead() {
    scale = scale_ahead;
    next_scale = next_scale_ahead;
  }
  __device__ __forceinline__ void ClearSums() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) outer[half][t][e] = 0;
      }
    }
  }

  // Up to 32 blocks, from `group` on.
  __device__ __forceinline__ void MultiplyGroup(int group, int column) {
    // The first column tile with the second row of scales.
    const int of_next = (kScaleRows - column % kScaleRows) / 8;
    const int end = min(group + 32, p.blocks);
    int block = group;
#pragma unroll 1
    for (; block + kTogether <= end; block += kTogether) Multiply<kTogether>(block, of_next);
    if constexpr (kTogether > 1) {
      if (block < end) Multiply<1>(block, of_next);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void Multiply(int block, int of_next) {
    float inner[kCount][kTiles][4];
    float2 of_tokens[kCount];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) Issue(inner[i], of_tokens[i], half);
      if constexpr (kCount == 2) {
        WgmmaWait<1>();
        Fold(inner[0], of_tokens[0], half, block, of_next);
      }
      WgmmaWait<0>();
      Fold(inner[kCount - 1], of_tokens[kCount - 1], half, block + kCount - 1, of_next);
    }
  }

  // Starts the products of a stage's half, and loads the scales of this thread's two tokens.
  __device__ __forceinline__ void Issue(Sums& inner, float2& of_tokens, int half) {
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
  }
  // Folds finished products into `outer`; after the last half the stage is free.
  __device__ __forceinline__ void Fold(Sums& inner, float2 of_tokens, int half, int block,
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
  }

  // token: this thread's first one.
  __device__ __forceinline__ void Store(int token, int column) const {
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
};

template <int kColumns, int kHalves>
__global__ void __launch_bounds__(kTileThreads, 1)
    Sm90W8A8GemmKernel(GemmParams p, const float* token_scales, int64_t token_pitch, TilePlan plan,
                       const __grid_constant__ CUtensorMap tokens,
                       const __grid_constant__ CUtensorMap weights) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte shared[];
  Sm90W8A8Gemm<kColumns, kHalves> gemm(p, plan, shared);
  if (threadIdx.x == 0) gemm.InitBarriers();
  ClusterSync();
  if (gemm.warp >= kTileWarps) {
    WarpgroupRegDealloc();
    gemm.Produce(token_scales, token_pitch, tokens, weights);
  } else {
    WarpgroupRegAlloc();
    gemm.Compute();
  }
  // The other thread block may still write to this one's shared memory.
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

// An estimate of its cycles a block of K: for each round of tiles seven a weight row and 50 more,
// as measured on an H200 for 80 to 136 rows. The products alone are four a weight row.
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

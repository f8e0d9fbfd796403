// Class mma for fp8 and bf16 (order.h) on sm_90 and later where there are too few rows to stream:
// everything is asked for at once. A warp computes the inner sum of one block of a tile, sums of
// blocks meet in shared memory and are folded there in order; segments of other thread blocks meet
// in the workspace (meeting.cuh).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/block_plan.h"
#include "kernels/cuda/block_trace.cuh"
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/grid_order.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/meeting.cuh"
#include "kernels/cuda/mma_step.cuh"
#include "kernels/cuda/targets.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fulcrum::cuda {

struct BlockArgs : TargetLaunch {
  BlockPlan plan;
  int tiles;
  Divider by_ranks = Divider(1), by_rank_blocks = Divider(1), by_rank_segments = Divider(1);
};

template <class Quarter, int kTiles>
__global__ void __launch_bounds__(BlockMaxWarps(kTiles, Quarter::kBlockBytes) * 32, 1)
    BlockKernel(const __grid_constant__ BlockArgs p, const __grid_constant__ CUtensorMap map) {
#if __CUDA_ARCH__ >= 900
  [[maybe_unused]] const BlockTrace<Quarter> trace;
  extern __shared__ __align__(1024) std::byte shared[];
  constexpr int kTileX = 8 * 64 * 2, kHalfX = kTiles * kTileX, kBlockX = 2 * kHalfX;
  LetNextGridStart();
  const BlockPlan& plan = p.plan;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int group = p.by_ranks(static_cast<int>(blockIdx.x));
  const int rank = static_cast<int>(blockIdx.x) - group * plan.ranks;
  const int first_tile = group * plan.group_tiles;
  const int tiles = min(plan.group_tiles, p.tiles - first_tile);
  const int rank_blocks = plan.rank_segments * p.segment_blocks;  // of a tile, some past the end
  const int first_block = rank * rank_blocks;
  const int items = tiles * rank_blocks;

  const uint32_t x = SharedAddress(shared);
  float4* const inners = reinterpret_cast<float4*>(shared + rank_blocks * kBlockX);
  float4* const sums = inners + plan.group_tiles * rank_blocks * kTiles * 32;
  const uint32_t x_full = SharedAddress(sums + plan.group_tiles * kTiles * plan.rank_segments * 32);
  if (threadIdx.x == 0) {
    BarrierInit(x_full, 1);
    BarriersReady();
    WaitForPreviousGrid();
    BarrierExpect(x_full, rank_blocks * kBlockX);
    for (int s = 0; s < plan.rank_segments; ++s) {
      TensorCopySlices(x + s * p.segment_blocks * kBlockX, &map,
                       (first_block + s * p.segment_blocks) * 2, x_full);
    }
  }
  // A warp's next block of a tile, asked for ahead; past the end of K there are none.
  Quarter next[4];
  const auto load = [&](int item) {
    if (item >= items) return;
    const int tile = p.by_rank_blocks(item), block = first_block + item - tile * rank_blocks;
    if (block >= p.blocks) return;
    const std::byte* const codes = p.Codes(first_tile + tile, block, Quarter::kBlockBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) next[i].Load(codes, i, lane);
  };
  load(warp);
  // What this warp folds: a segment of a column tile of a tile.
  const int folds = tiles * kTiles * plan.rank_segments;
  const auto scale_of = [&](int fold) {
    if (!Quarter::kScaled || fold >= folds) return 1.0f;
    const int column_tiles = p.by_rank_segments(fold);
    const int segment = fold - column_tiles * plan.rank_segments;
    const int block = first_block + segment * p.segment_blocks;
    return lane < min(p.segment_blocks, p.blocks - block)
               ? __ldg(p.Scales(first_tile + column_tiles / kTiles, block) + lane)
               : 0.0f;
  };
  float scale = scale_of(warp);
  __syncthreads();
  WaitForPreviousGrid();

  const uint32_t row_x = x + lane % 8 * 128;
  const uint32_t chunk[2] = {static_cast<uint32_t>((lane / 8) ^ (lane % 8)) << 4,
                             static_cast<uint32_t>((lane / 8 + 4) ^ (lane % 8)) << 4};
  for (int item = warp; item < items; item += plan.warps) {
    Quarter quarters[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) quarters[i] = next[i];
    load(item + plan.warps);
    const int block = item - p.by_rank_blocks(item) * rank_blocks;
    if (first_block + block >= p.blocks) continue;
    BarrierWait(x_full, 0);
    float inner[kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const StepPairs even = quarters[i].Step(0), odd = quarters[i].Step(1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 columns =
            LoadMatrices(row_x + block * kBlockX + i / 2 * kHalfX + t * kTileX + chunk[i % 2]);
        Mma(inner[t], even, make_uint2(columns.x, columns.y));
        Mma(inner[t], odd, make_uint2(columns.z, columns.w));
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      inners[(item * kTiles + t) * 32 + lane] =
          make_float4(inner[t][0], inner[t][1], inner[t][2], inner[t][3]);
    }
  }
  __syncthreads();

  const auto finishes = [&](int tile, int column_tile) {
    return ((first_tile + tile) * kTiles + column_tile) % plan.ranks == rank;
  };
  for (int fold = warp; fold < folds; fold += plan.warps) {
    if (fold != warp) scale = scale_of(fold);
    const int column_tiles = p.by_rank_segments(fold);
    const int segment = fold - column_tiles * plan.rank_segments;
    const int tile = column_tiles / kTiles, column_tile = column_tiles % kTiles;
    const int blocks = min(p.segment_blocks, p.blocks - first_block - segment * p.segment_blocks);
    const float4* const inner =
        inners + ((tile * rank_blocks + segment * p.segment_blocks) * kTiles + column_tile) * 32 +
        lane;
    float sum[4] = {};
#pragma unroll 4
    for (int b = 0; b < blocks; ++b) {
      const float4 of_block = inner[b * kTiles * 32];
      const float block_scale = Quarter::kScaled ? __shfl_sync(~0u, scale, b) : 1.0f;
      sum[0] = __fmaf_rn(block_scale, of_block.x, sum[0]);
      sum[1] = __fmaf_rn(block_scale, of_block.y, sum[1]);
      sum[2] = __fmaf_rn(block_scale, of_block.z, sum[2]);
      sum[3] = __fmaf_rn(block_scale, of_block.w, sum[3]);
    }
    if (finishes(tile, column_tile)) {
      sums[fold * 32 + lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    } else {
      LeaveSum<kTiles>(p, first_tile + tile, rank * plan.rank_segments + segment, column_tile, lane,
                       sum);
    }
  }
  __syncthreads();
  for (int i = warp; i < tiles * kTiles; i += plan.warps) {
    if (!finishes(i / kTiles, i % kTiles)) continue;
    FinishTile<kTiles>(p, first_tile + i / kTiles, i % kTiles, lane,
                       [&](int segment) -> const float4* {
                         const int local = segment - rank * plan.rank_segments;
                         if (local < 0 || local >= plan.rank_segments) return nullptr;
                         return sums + (i * plan.rank_segments + local) * 32 + lane;
                       });
  }
#endif
}

// m <= 8 kTiles. False in `serves`, and nothing launched, where this kernel is not for the product.
template <class Quarter, int kTiles>
cudaError_t LaunchBlocks(const Product& p, std::span<const Target> targets,
                         const CudaContext& context, bool* serves) {
  BlockArgs args;
  Fill(p, targets, context, &args);
  args.tiles = TilesOf(targets);
  args.plan = PlanBlocks({.tiles = args.tiles,
                          .segment_blocks = p.segment_blocks,
                          .segments = p.segments,
                          .column_tiles = kTiles,
                          .block_bytes = Quarter::kBlockBytes},
                         {context.sm_count, context.max_shared_bytes});
  *serves = context.has_bulk_copies && args.plan.ranks > 0 &&
            int64_t{args.tiles} * p.segments * kTiles * kMeetingBytes <= context.workspace_bytes;
  if (!*serves) return cudaSuccess;
  args.by_ranks = Divider(args.plan.ranks);
  args.by_rank_blocks = Divider(args.plan.rank_segments * p.segment_blocks);
  args.by_rank_segments = Divider(args.plan.rank_segments);
  CUtensorMap map;
  if (const cudaError_t error = DescribeSlices(p.x, p.m, int64_t{p.blocks} * kBlockK, p.x_pitch,
                                               kTiles * kMmaColumns, 2 * p.segment_blocks, &map);
      error != cudaSuccess) {
    return error;
  }
  const auto kernel = &BlockKernel<Quarter, kTiles>;
  if (const cudaError_t error = AllowShared(kernel, args.plan.shared_bytes); error != cudaSuccess) {
    return error;
  }
  const KernelGrid grid = {.thread_blocks = dim3(static_cast<unsigned>(args.plan.thread_blocks())),
                           .threads = args.plan.warps * 32,
                           .shared_bytes = args.plan.shared_bytes,
                           .programmatic = context.programmatic};
  return LaunchKernel(kernel, grid, context.stream, args, map);
}

}  // namespace fulcrum::cuda

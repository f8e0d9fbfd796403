// Class mma for fp8 and bf16 (order.h) on sm_90 and later where there are too few rows to stream:
// everything is asked for at once. A warp computes the inner sum of one block of a tile, sums of
// blocks meet in shared memory and are folded there in order. The thread blocks that share a tile's
// segments are a cluster: whoever has folded one sends it to the thread block that adds them up.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device/block_trace.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/fast_divmod.cuh"
#include "kernels/cuda/device/force_in_register.cuh"
#include "kernels/cuda/device/grid_dependency.cuh"
#include "kernels/cuda/device/kernel_launch.h"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/gemm/grouped_gemm.cuh"
#include "kernels/cuda/gemm/mma_step.cuh"
#include "kernels/cuda/gemm/row_copies.cuh"
#include "kernels/cuda/mma/small_gemm_plan.h"

namespace fulcrum::cuda {

inline constexpr int kFoldsTogether = 5;  // inner sums of blocks, asked for together

struct SmallGemmArgs : GroupedGemmParams {
  SmallGemmPlan plan;
  int tiles;
  const uint16_t* x;
  int64_t x_pitch;  // elements
  FastDivmod by_ranks = FastDivmod(1), by_rank_blocks = FastDivmod(1),
             by_rank_segments = FastDivmod(1);
  FastDivmod by_row_parts = FastDivmod(1);
};

// Whether the activations come by tensor copies. For few rows 16 bytes a thread are there 1.3 us
// sooner; for many there are too many of them.
template <int kTiles>
inline constexpr bool kSmallGemmTensorCopies = kTiles > 2;

template <class Quarter, int kTiles>
__global__ void __launch_bounds__(SmallGemmMaxWarps(kTiles, Quarter::kBlockBytes) * 32, 1)
    Sm90SmallGemmKernel(const __grid_constant__ SmallGemmArgs p,
                        const __grid_constant__ CUtensorMap map) {
#if __CUDA_ARCH__ >= 900
  [[maybe_unused]] const BlockTrace<Quarter> trace;
  extern __shared__ __align__(1024) std::byte shared[];
  constexpr int kTileX = 8 * 64 * 2, kHalfX = kTiles * kTileX, kBlockX = 2 * kHalfX;
  constexpr int kInnerBytes = kTiles * kSumBytes;  // of a block of a tile
  constexpr bool kMapped = kSmallGemmTensorCopies<kTiles>;
  LaunchDependentGrids();
  const SmallGemmPlan& plan = p.plan;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int group = p.by_ranks(static_cast<int>(blockIdx.x));
  const int rank = static_cast<int>(blockIdx.x) - group * plan.ranks;  // in the cluster
  const int first_tile = group * plan.group_tiles;
  const int tiles = min(plan.group_tiles, p.tiles - first_tile);
  const int rank_blocks = plan.rank_segments * p.segment_blocks;  // of a tile, some past the end
  const int first_block = rank * rank_blocks;
  const int items = tiles * rank_blocks;  // blocks of tiles

  // A warp's next block of a tile, asked for ahead; past the end of K there are none.
  Quarter next[4];
  const auto load = [&](int item) {
    if (item >= items) return;
    const int tile = p.by_rank_blocks(item), block = first_block + item - tile * rank_blocks;
    if (block >= p.blocks) return;
    const std::byte* const codes = p.Codes(first_tile + tile, block, Quarter::kBlockBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) next[i].Load(codes, 2 * i, lane);
  };
  load(warp);

  const uint32_t x = SharedAddress(shared), inners = x + rank_blocks * kBlockX;
  const uint32_t sums = inners + plan.group_tiles * rank_blocks * kInnerBytes;
  const uint32_t sums_full = sums + plan.sums_here * p.segments * kSumBytes, x_full = sums_full + 8;
  // Column tiles of tiles, each added up by the thread block of rank `index % ranks`.
  const int sums_here = p.by_ranks(tiles * kTiles - rank + plan.ranks - 1);
  if (threadIdx.x == 0) {
    MbarrierInit(sums_full, 1);
    MbarrierInit(x_full, 1);
    MbarrierInitFence();
    MbarrierArriveExpectTx(sums_full, sums_here * p.segments * kSumBytes);
  }
  __syncwarp();
  ClusterArriveRelaxed();

  WaitOnDependentGrids();
  if (kMapped && threadIdx.x == 0) {
    MbarrierArriveExpectTx(x_full, rank_blocks * kBlockX);
    for (int s = 0; s < plan.rank_segments; ++s) {
      TensorCopySlices(x + s * p.segment_blocks * kBlockX, &map,
                       (first_block + s * p.segment_blocks) * 2, x_full);
    }
  } else if (!kMapped) {
    const RowCopies rows = {.from = p.x + first_block * kBlockK,
                            .pitch = p.x_pitch,
                            .m = p.m,
                            .blocks = min(rank_blocks, p.blocks - first_block),
                            .row_parts = (rank_blocks + 1) / 2,
                            .by_row_parts = p.by_row_parts};
    CopyRows<kHalfX>(rows, x, warp, plan.warps, lane);
  }

  // What this warp folds: a segment of a column tile of a tile.
  const int folds = tiles * kTiles * plan.rank_segments;
  struct Fold {
    float scale;  // lane i has that of block i
    int blocks;
    uint32_t inner, sum, full;  // shared memory; sum and full where it is added up
  };
  const auto fold_of = [&](int index) {
    Fold fold = {};
    if (index >= folds) return fold;
    const int column_tiles = p.by_rank_segments(index);
    const int segment = index - column_tiles * plan.rank_segments;
    const int tile = column_tiles / kTiles;
    const int block = segment * p.segment_blocks;
    fold.blocks = min(p.segment_blocks, p.blocks - first_block - block);
    fold.scale = Quarter::kScaled && lane < fold.blocks
                     ? __ldg(p.Scales(first_tile + tile, first_block + block) + lane)
                     : 0.0f;
    fold.inner = inners + (tile * rank_blocks + block) * kInnerBytes +
                 column_tiles % kTiles * kSumBytes + lane * 16;
    const int turn = p.by_ranks(column_tiles), owner = column_tiles - turn * plan.ranks;
    fold.sum =
        sums + (turn * p.segments + rank * plan.rank_segments + segment) * kSumBytes + lane * 16;
    fold.full = sums_full;
    if (plan.ranks > 1) {
      fold.sum = ClusterMapShared(fold.sum, owner);
      fold.full = ClusterMapShared(fold.full, owner);
    }
    return fold;
  };
  constexpr bool kHeld = kTiles * Quarter::kBlockBytes < kSmallGemmNotHeld;
  Fold fold = {};
  if constexpr (kHeld) {
    fold = fold_of(warp);
    ForceInRegister(fold.blocks), ForceInRegister(fold.inner), ForceInRegister(fold.sum),
        ForceInRegister(fold.full);
  }
  // What it adds up: a column tile of a tile.
  const auto place_of = [&](int turn) {
    const int column_tiles = min(turn * plan.ranks + rank, tiles * kTiles - 1);
    return p.PlaceOf(first_tile + column_tiles / kTiles, column_tiles % kTiles, lane);
  };
  ResultPlace place = {};
  if constexpr (kHeld) {
    place = place_of(warp);
    place.ForceInRegisters();
  }

  uint32_t chunk[2] = {
      x + lane % 8 * 128 + (static_cast<uint32_t>((lane / 8) ^ (lane % 8)) << 4),
      x + lane % 8 * 128 + (static_cast<uint32_t>((lane / 8 + 4) ^ (lane % 8)) << 4)};
  ClusterWait();  // every thread block's barrier is there
  AsyncWait<0>();
  __syncthreads();
  if (kMapped) MbarrierWait(x_full, 0);
  for (int item = warp; item < items; item += plan.warps) {
    const int block = item - p.by_rank_blocks(item) * rank_blocks;
    const bool there = first_block + block < p.blocks;
    Quarter quarters[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) quarters[i] = next[i];
    if (kHeld || !there) load(item + plan.warps);
    if (!there) continue;
    float inner[kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const StepPairs even = quarters[i].Step(0), odd = quarters[i].Step(1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 columns =
            LdMatrixX4(chunk[i % 2] + block * kBlockX + i / 2 * kHalfX + t * kTileX);
        Mma(inner[t], even, make_uint2(columns.x, columns.y));
        Mma(inner[t], odd, make_uint2(columns.z, columns.w));
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      SharedStore(inners + (item * kTiles + t) * kSumBytes + lane * 16,
                  make_float4(inner[t][0], inner[t][1], inner[t][2], inner[t][3]));
    }
    if (!kHeld) load(item + plan.warps);
  }
  __syncthreads();

  for (int index = warp; index < folds; index += plan.warps) {
    if (!kHeld || index != warp) fold = fold_of(index);
    float4 sum = {};
#pragma unroll 1
    for (int first = 0; first < fold.blocks; first += kFoldsTogether) {
      float4 of_block[kFoldsTogether];
#pragma unroll
      for (int i = 0; i < kFoldsTogether; ++i) {
        of_block[i] = SharedLoadF32(fold.inner + min(first + i, fold.blocks - 1) * kInnerBytes);
      }
#pragma unroll
      for (int i = 0; i < kFoldsTogether; ++i) {
        const float scale = Quarter::kScaled ? __shfl_sync(~0u, fold.scale, first + i) : 1.0f;
        if (first + i >= fold.blocks) continue;
        sum.x = __fmaf_rn(scale, of_block[i].x, sum.x);
        sum.y = __fmaf_rn(scale, of_block[i].y, sum.y);
        sum.z = __fmaf_rn(scale, of_block[i].z, sum.z);
        sum.w = __fmaf_rn(scale, of_block[i].w, sum.w);
      }
    }
    if (plan.ranks > 1) {
      StoreAsync128(fold.sum, sum, fold.full);
    } else {  // there is no cluster to send through
      SharedStore(fold.sum, sum);
    }
  }
  if (plan.ranks == 1) {
    __syncthreads();
  } else if (warp < sums_here) {
    MbarrierWait(sums_full, 0);
  }
  for (int turn = warp; turn < sums_here; turn += plan.warps) {
    if (!kHeld || turn != warp) place = place_of(turn);
    float sum[4] = {};
#pragma unroll 4
    for (int segment = 0; segment < p.segments; ++segment) {
      const float4 part =
          SharedLoadF32(sums + (turn * p.segments + segment) * kSumBytes + lane * 16);
      sum[0] = __fadd_rn(sum[0], part.x);
      sum[1] = __fadd_rn(sum[1], part.y);
      sum[2] = __fadd_rn(sum[2], part.z);
      sum[3] = __fadd_rn(sum[3], part.w);
    }
    place.Store(sum, p.y_f32);
  }
#endif
}

// m <= 8 kTiles. False in `serves`, and nothing launched, where this kernel is not for the product.
template <class Quarter, int kTiles>
cudaError_t LaunchSmallGemm(const GemmParams& p, std::span<const GemmTarget> targets,
                            const CudaContext& context, bool* serves) {
  SmallGemmArgs args;
  FillGroupedParams(p, targets, context, &args);
  args.tiles = TilesOf(targets);
  args.plan = PlanSmallGemm({.tiles = args.tiles,
                             .segment_blocks = p.segment_blocks,
                             .segments = p.segments,
                             .column_tiles = kTiles,
                             .block_bytes = Quarter::kBlockBytes},
                            {context.sm_count, context.max_shared_bytes});
  *serves = context.has_bulk_copies && args.plan.ranks > 0;
  if (!*serves) return cudaSuccess;
  args.by_ranks = FastDivmod(args.plan.ranks);
  args.by_rank_blocks = FastDivmod(args.plan.rank_segments * p.segment_blocks);
  args.by_rank_segments = FastDivmod(args.plan.rank_segments);
  args.by_row_parts = FastDivmod((args.plan.rank_segments * p.segment_blocks + 1) / 2);
  args.x = p.x;
  args.x_pitch = p.x_pitch;
  CUtensorMap map = {};
  if (kSmallGemmTensorCopies<kTiles>) {
    if (const cudaError_t error = DescribeSlices(p.x, p.m, int64_t{p.blocks} * kBlockK, p.x_pitch,
                                                 kTiles * kMmaColumns, 2 * p.segment_blocks, &map);
        error != cudaSuccess) {
      return error;
    }
  }
  const auto kernel = &Sm90SmallGemmKernel<Quarter, kTiles>;
  if (const cudaError_t error = AllowShared(kernel, args.plan.shared_bytes); error != cudaSuccess) {
    return error;
  }
  const KernelGrid grid = {.thread_blocks = dim3(static_cast<unsigned>(args.plan.thread_blocks())),
                           .threads = args.plan.warps * 32,
                           .shared_bytes = args.plan.shared_bytes,
                           .cluster = args.plan.ranks,
                           .programmatic = context.programmatic};
  return LaunchKernel(kernel, grid, context.stream, args, map);
}

}  // namespace fulcrum::cuda

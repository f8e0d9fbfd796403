// Class mma for fp8 and bf16 (order.h) on sm_90 and later, for products with too few weight rows to
// stream: all loads start at once.
//
// A warp computes the inner sum of one block of a tile. The inner sums meet in shared memory, where
// warps fold the blocks of a segment in order. The thread blocks that share a tile's segments are a
// cluster: a folded segment is sent to the thread block that adds the segments up and stores.
//
// A launch takes a few microseconds and runs everything once. So addresses that can be computed
// before the weights arrive are computed then and kept (ForceInRegister).
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

inline constexpr int kFoldsTogether = 5;  // inner sums of blocks loaded at a time

struct SmallGemmArgs : GroupedGemmParams {
  SmallGemmPlan plan;
  int tiles;
  const uint16_t* x;
  int64_t x_pitch;  // elements
  FastDivmod by_ranks = FastDivmod(1), by_rank_blocks = FastDivmod(1),
             by_rank_segments = FastDivmod(1);
  FastDivmod by_row_parts = FastDivmod(1);
};

// Whether the activations come by tensor copies. For few rows copies of 16 bytes a thread are 1.3
// us faster (H200); many rows would need too many of them.
template <int kTiles>
inline constexpr bool kSmallGemmTensorCopies = kTiles > 2;

template <class Quarter, int kTiles>
struct Sm90SmallGemm {
  static constexpr int kTileX = 8 * 64 * 2;       // half a block of activations of a column tile
  static constexpr int kHalfX = kTiles * kTileX;  // 64 K
  static constexpr int kBlockX = 2 * kHalfX;
  static constexpr int kInnerBytes = kTiles * kSumBytes;  // of a block of a tile
  static constexpr bool kMapped = kSmallGemmTensorCopies<kTiles>;
  // Whether a warp has registers for its next block and the addresses below.
  static constexpr bool kHeld = kTiles * Quarter::kBlockBytes < kSmallGemmNotHeld;
  static_assert(kTiles == 1 || kTiles == 2 || kTiles == 4, "columns are 8, 16 or 32");
  static_assert(kBlockX % 1024 == 0, "blocks begin where the 128-byte swizzle repeats");

  // A segment of a column tile of a tile, which a warp folds.
  struct Segment {
    float scale;  // lane i has that of block i
    int blocks;
    uint32_t inner, sum, full;  // shared memory; sum and full where the segments are added up
  };

  const SmallGemmArgs& p;
  const SmallGemmPlan& plan;
  const int lane, warp;
  const int group, rank;  // the cluster, and the thread block's place in it
  const int first_tile, tiles;
  const int rank_blocks, first_block;  // of a tile; some are past the end of K
  const int items;                     // blocks of tiles
  // Shared memory: activations, inner sums, sums of segments, barriers.
  const uint32_t x, inners, sums, sums_full, x_full;
  const int sums_here;  // column tiles of tiles that this thread block adds up

  Quarter next[4];  // the warp's next block of weights

  __device__ __forceinline__ Sm90SmallGemm(const SmallGemmArgs& args, std::byte* shared)
      : p(args),
        plan(args.plan),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        group(p.by_ranks(static_cast<int>(blockIdx.x))),
        rank(static_cast<int>(blockIdx.x) - group * plan.ranks),
        first_tile(group * plan.group_tiles),
        tiles(min(plan.group_tiles, p.tiles - first_tile)),
        rank_blocks(plan.rank_segments * p.segment_blocks),
        first_block(rank * rank_blocks),
        items(tiles * rank_blocks),
        x(SharedAddress(shared)),
        inners(x + rank_blocks * kBlockX),
        sums(inners + plan.group_tiles * rank_blocks * kInnerBytes),
        sums_full(sums + plan.sums_here * p.segments * kSumBytes),
        x_full(sums_full + 8),
        sums_here(p.by_ranks(tiles * kTiles - rank + plan.ranks - 1)) {}

  // Loads the weights of a block of a tile; past the end of K there are none.
  __device__ __forceinline__ void Load(int item) {
    if (item >= items) return;
    const int tile = p.by_rank_blocks(item), block = first_block + item - tile * rank_blocks;
    if (block >= p.blocks) return;
    const std::byte* const codes = p.Codes(first_tile + tile, block, Quarter::kBlockBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) next[i].Load(codes, 2 * i, lane);
  }

  __device__ __forceinline__ void InitBarriers() const {
    MbarrierInit(sums_full, 1);
    MbarrierInit(x_full, 1);
    MbarrierInitFence();
    MbarrierArriveExpectTx(sums_full, sums_here * p.segments * kSumBytes);
  }

  __device__ __forceinline__ void LoadActivations(const CUtensorMap* map) const {
    if (kMapped && threadIdx.x == 0) {
      const int segments = plan.rank_segments, blocks = p.segment_blocks;
      MbarrierArriveExpectTx(x_full, rank_blocks * kBlockX);
      for (int s = 0; s < segments; ++s) {
        TensorCopySlices(x + s * blocks * kBlockX, map, (first_block + s * blocks) * 2, x_full);
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
  }
  __device__ __forceinline__ void AwaitActivations() const {
    AsyncWait<0>();
    __syncthreads();
    if (kMapped) MbarrierWait(x_full, 0);
  }

  __device__ __forceinline__ int Segments() const { return tiles * kTiles * plan.rank_segments; }
  __device__ __forceinline__ Segment SegmentOf(int index) const {
    Segment segment = {};
    if (index >= Segments()) return segment;
    const int column_tiles = p.by_rank_segments(index);
    const int number = index - column_tiles * plan.rank_segments;
    const int tile = column_tiles / kTiles;
    const int block = number * p.segment_blocks;
    segment.blocks = min(p.segment_blocks, p.blocks - first_block - block);
    segment.scale = Quarter::kScaled && lane < segment.blocks
                        ? __ldg(p.Scales(first_tile + tile, first_block + block) + lane)
                        : 0.0f;
    segment.inner = inners + (tile * rank_blocks + block) * kInnerBytes +
                    column_tiles % kTiles * kSumBytes + lane * 16;
    const int turn = p.by_ranks(column_tiles), owner = column_tiles - turn * plan.ranks;
    segment.sum =
        sums + (turn * p.segments + rank * plan.rank_segments + number) * kSumBytes + lane * 16;
    segment.full = sums_full;
    if (plan.ranks > 1) {
      segment.sum = ClusterMapShared(segment.sum, owner);
      segment.full = ClusterMapShared(segment.full, owner);
    }
    return segment;
  }
  // Where the results go of column tile number `turn` of those that this thread block adds up: the
  // one of index turn * ranks + rank in the cluster.
  __device__ __forceinline__ ResultPlace PlaceOf(int turn) const {
    const int column_tiles = min(turn * plan.ranks + rank, tiles * kTiles - 1);
    return p.PlaceOf(first_tile + column_tiles / kTiles, column_tiles % kTiles, lane);
  }

  // The inner sums of the warp's blocks into shared memory.
  __device__ __forceinline__ void Multiply(const uint32_t (&chunk)[2]) {
    for (int item = warp; item < items; item += plan.warps) {
      const int block = item - p.by_rank_blocks(item) * rank_blocks;
      const bool there = first_block + block < p.blocks;
      Quarter quarters[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) quarters[i] = next[i];
      if (kHeld || !there) Load(item + plan.warps);
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
      if (!kHeld) Load(item + plan.warps);
    }
  }

  // Folds the warp's segments, in order, and sends them to where they are added up. first: the
  // warp's first segment where it is held.
  __device__ __forceinline__ void Fold(Segment segment) const {
    for (int index = warp; index < Segments(); index += plan.warps) {
      if (!kHeld || index != warp) segment = SegmentOf(index);
      const float4 sum = FoldBlocks(segment);
      if (plan.ranks > 1) {
        StoreAsync128(segment.sum, sum, segment.full);
      } else {  // there is no cluster to send through
        SharedStore(segment.sum, sum);
      }
    }
  }
  __device__ __forceinline__ static float4 FoldBlocks(const Segment& segment) {
    float4 sum = {};
#pragma unroll 1
    for (int first = 0; first < segment.blocks; first += kFoldsTogether) {
      float4 of_block[kFoldsTogether];
#pragma unroll
      for (int i = 0; i < kFoldsTogether; ++i) {
        of_block[i] =
            SharedLoadF32(segment.inner + min(first + i, segment.blocks - 1) * kInnerBytes);
      }
#pragma unroll
      for (int i = 0; i < kFoldsTogether; ++i) {
        const float scale = Quarter::kScaled ? __shfl_sync(~0u, segment.scale, first + i) : 1.0f;
        if (first + i >= segment.blocks) continue;
        sum.x = __fmaf_rn(scale, of_block[i].x, sum.x);
        sum.y = __fmaf_rn(scale, of_block[i].y, sum.y);
        sum.z = __fmaf_rn(scale, of_block[i].z, sum.z);
        sum.w = __fmaf_rn(scale, of_block[i].w, sum.w);
      }
    }
    return sum;
  }

  // Adds the segments of this thread block's column tiles in ascending order and stores. place:
  // that of the warp's first column tile where it is held.
  __device__ __forceinline__ void Reduce(ResultPlace place) const {
    if (plan.ranks == 1) {
      __syncthreads();
    } else if (warp < sums_here) {
      MbarrierWait(sums_full, 0);
    }
    const int segments = p.segments;
    for (int turn = warp; turn < sums_here; turn += plan.warps) {
      if (!kHeld || turn != warp) place = PlaceOf(turn);
      float sum[4] = {};
#pragma unroll 4
      for (int segment = 0; segment < segments; ++segment) {
        const float4 part =
            SharedLoadF32(sums + (turn * segments + segment) * kSumBytes + lane * 16);
        sum[0] = __fadd_rn(sum[0], part.x);
        sum[1] = __fadd_rn(sum[1], part.y);
        sum[2] = __fadd_rn(sum[2], part.z);
        sum[3] = __fadd_rn(sum[3], part.w);
      }
      place.Store(sum, p.y_f32);
    }
  }
};

template <class Quarter, int kTiles>
__global__ void __launch_bounds__(SmallGemmMaxWarps(kTiles, Quarter::kBlockBytes) * 32, 1)
    Sm90SmallGemmKernel(const __grid_constant__ SmallGemmArgs p,
                        const __grid_constant__ CUtensorMap map) {
#if __CUDA_ARCH__ >= 900
  using Gemm = Sm90SmallGemm<Quarter, kTiles>;
  [[maybe_unused]] const BlockTrace<Quarter> trace;
  extern __shared__ __align__(1024) std::byte shared[];
  LaunchDependentGrids();
  Gemm gemm(p, shared);
  gemm.Load(gemm.warp);
  if (threadIdx.x == 0) gemm.InitBarriers();
  __syncwarp();
  ClusterArriveRelaxed();

  WaitOnDependentGrids();
  gemm.LoadActivations(&map);

  // While weights and activations arrive: the addresses of the warp's first segment and results.
  typename Gemm::Segment segment = {};
  ResultPlace place = {};
  if constexpr (Gemm::kHeld) {
    segment = gemm.SegmentOf(gemm.warp);
    ForceInRegister(segment.blocks), ForceInRegister(segment.inner);
    ForceInRegister(segment.sum), ForceInRegister(segment.full);
    place = gemm.PlaceOf(gemm.warp);
    place.ForceInRegisters();
  }
  // Addresses of this lane's row of 8 elements for ldmatrix, of even and odd quarters.
  const int lane = gemm.lane;
  const uint32_t row = gemm.x + lane % 8 * 128;
  const uint32_t chunk[2] = {row + (static_cast<uint32_t>((lane / 8) ^ (lane % 8)) << 4),
                             row + (static_cast<uint32_t>((lane / 8 + 4) ^ (lane % 8)) << 4)};
  ClusterWait();  // the barriers of every thread block are initialised
  gemm.AwaitActivations();
  gemm.Multiply(chunk);
  __syncthreads();
  gemm.Fold(segment);
  gemm.Reduce(place);
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

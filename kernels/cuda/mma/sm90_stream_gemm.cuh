// Class mma for fp8 and bf16 (order.h) on sm_90 and later, bound by the read of the weights: one
// pass over one or several weights for 1 to 32 columns.
//
// A warp computes one unit (a K segment of a tile of 16 rows) at a time. Producer warps copy the
// unit's blocks into the warp's ring in shared memory. A block is the A operand of mma.m16n8k16;
// the activations, which stay in shared memory, are the B operand. The fold is in registers. Units
// of tiles that other thread blocks finish come first, so that their partial sums
// (split_k_reduce.cuh) arrive long before they are needed. Partial sums of own tiles stay in shared
// memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/device/block_trace.cuh"
#include "kernels/cuda/device/grid_dependency.cuh"
#include "kernels/cuda/device/kernel_launch.h"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/pipeline_state.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/gemm/mma_step.cuh"
#include "kernels/cuda/gemm/row_copies.cuh"
#include "kernels/cuda/gemm/split_k_reduce.cuh"
#include "kernels/cuda/mma/stream_gemm_units.cuh"

namespace fulcrum::cuda {

// The most warps that compute. Looking for NaN codes takes registers, and so do 32 columns.
template <class Quarter, int kTiles>
inline constexpr int kStreamWarps = Quarter::kNan&& kTiles == 4 ? 17 : kStreamMaxWarps;

template <class Quarter, int kTiles>
struct Sm90StreamGemm {
  static constexpr int kBlockBytes = Quarter::kBlockBytes;
  static constexpr int kTileX = 8 * 64 * 2;       // half a block of activations of a column tile
  static constexpr int kHalfX = kTiles * kTileX;  // 64 K
  static constexpr int kBlockX = 2 * kHalfX;
  static_assert(kTiles == 1 || kTiles == 2 || kTiles == 4, "columns are 8, 16 or 32");
  static_assert(kBlockX % 1024 == 0, "blocks begin where the 128-byte swizzle repeats");
  static_assert(kStreamWarps<Quarter, kTiles> + kStreamMostProducers <= 24,
                "80 registers a thread, which the arithmetic needs");

  const StreamGemmArgs& p;
  const StreamGemmUnits units;
  const int rank, lane, warp;
  const uint32_t x;  // shared memory begins with the activations

  __device__ __forceinline__ Sm90StreamGemm(const StreamGemmArgs& args, std::byte* shared,
                                            int group, int rank_)
      : p(args),
        units(args, group, rank_),
        rank(rank_),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        x(SharedAddress(shared)) {}

  static constexpr int kUnitPartialBytes = kTiles * kPartialBytes;  // bytes of a unit
  // Address of this thread's sums of an own unit and column tile.
  __device__ __forceinline__ uint32_t PartialsAt(int unit, int column_tile) const {
    return x + p.sums + (unit - units.own_first) * kUnitPartialBytes + column_tile * kPartialBytes +
           lane * 16;
  }
  // A unit's tile (counted from the launch's first), first block and number of blocks.
  __device__ __forceinline__ int TileOf(int unit) const { return p.by_rank_segments(unit); }
  __device__ __forceinline__ int SegmentOf(int unit) const {  // among this rank's
    return unit - TileOf(unit) * p.plan.rank_segments;
  }
  __device__ __forceinline__ int FirstBlock(int segment) const {
    return (rank * p.plan.rank_segments + segment) * p.segment_blocks;
  }
  __device__ __forceinline__ int Blocks(int segment) const {
    return min(p.segment_blocks, p.blocks - FirstBlock(segment));
  }

  __device__ __forceinline__ int FirstOwnTile() const { return TileOf(units.own_first); }
  __device__ __forceinline__ int OwnTiles() const {
    return TileOf(units.own_first + units.own_count) - FirstOwnTile();
  }
  // Units of an own tile in this thread block: the first ones can belong to the group before.
  __device__ __forceinline__ int OwnUnits(int tile) const {
    const int first = (FirstOwnTile() + tile) * p.plan.rank_segments;
    return first + p.plan.rank_segments - max(first, units.own_first);
  }

  // Producer warp: each lane copies the weights of one of the warps `first`, `first` +
  // plan.producers, ...
  __device__ __forceinline__ void Produce(int first) {
    const int served = first + p.plan.producers * lane;
    const int stages = p.plan.stages;
    const uint32_t ring = x + p.rings + served * stages * kBlockBytes;
    const uint32_t ring_full = x + p.full + served * stages * 8;
    const uint32_t ring_empty = x + p.empty + served * stages * 8;
    const uint64_t policy = EvictFirstPolicy();
    int item = served < p.plan.warps ? served : units.count, left = 0;
    const std::byte* next = nullptr;
    const auto aim = [&] {
      if (item >= units.count) return;
      const int unit = units[item], segment = SegmentOf(unit);
      left = Blocks(segment);
      next = p.Codes(TileOf(unit), FirstBlock(segment), kBlockBytes);
    };
    const auto ask = [&](int stage) {
      MbarrierArriveExpectTx(ring_full + 8 * stage, kBlockBytes);
      BulkCopy(ring + stage * kBlockBytes, next, kBlockBytes, ring_full + 8 * stage, policy);
      next += kPanelTiles * kBlockBytes;
      if (--left == 0) {
        item += p.plan.warps;
        aim();
      }
    };
    aim();
    // The memory is idle until the first copies start. So they start before the thread block
    // synchronises, and each barrier is initialised just before its copy.
    for (int i = 0; i < stages && served < p.plan.warps; ++i) {
      MbarrierInit(ring_full + 8 * i, 1);
      MbarrierInitFence();
      if (item < units.count) ask(i);
    }
    __syncwarp();
    __syncthreads();
    PipelineState at;
    while (item < units.count) {
      if (!MbarrierTestWait(ring_empty + 8 * at.stage, at.parity)) continue;
      ask(at.stage);
      at.Advance(stages);
    }
    __syncwarp();
    WaitOnDependentGrids();
  }

  __device__ __forceinline__ void MakeTileBarriers() const {
    SharedStore32(x + p.taken, 0);
    for (int tile = 0; tile < OwnTiles(); ++tile) {
      MbarrierInit(x + p.tile_full + 8 * tile, OwnUnits(tile));
    }
    MbarrierInitFence();
  }

  // By the computing warps, or by one thread and tensor copies.
  __device__ __forceinline__ void CopyActivations() const {
    WaitOnDependentGrids();
    const int first = FirstBlock(0);
    const RowCopies rows = {.from = p.activations + first * kBlockK,
                            .pitch = p.activation_pitch,
                            .m = p.m,
                            .blocks = min(p.row_blocks, p.blocks - first),
                            .row_parts = p.row_parts,
                            .by_row_parts = p.by_row_parts};
    CopyRows<kHalfX>(rows, x, warp, p.plan.warps, lane);
  }
  __device__ __forceinline__ void AwaitActivations() const {
    AsyncWait<0>();
    NamedBarrierSync(2, p.plan.warps * 32);
  }

  __device__ __forceinline__ void LoadActivations(const CUtensorMap* map) const {
    for (int s = 0; s < p.plan.rank_segments; ++s) MbarrierInit(x + p.x_full + 8 * s, 1);
    MbarrierInitFence();
    WaitOnDependentGrids();
    for (int s = 0; s < p.plan.rank_segments; ++s) {
      MbarrierArriveExpectTx(x + p.x_full + 8 * s, p.segment_blocks * kBlockX);
      TensorCopySlices(x + s * p.segment_blocks * kBlockX, map, FirstBlock(s) * 2,
                       x + p.x_full + 8 * s);
    }
  }

  __device__ __forceinline__ float Scale(int unit) const {  // scale of block `lane`
    if constexpr (!Quarter::kScaled) return 1.0f;
    const int segment = SegmentOf(unit);
    return lane < Blocks(segment) ? __ldg(p.Scales(TileOf(unit), FirstBlock(segment)) + lane)
                                  : 0.0f;
  }

  // Compute warp: all its units, one after the other.
  __device__ __forceinline__ void Compute() {
    const int stages = p.plan.stages;
    const uint32_t ring = x + p.rings + warp * stages * kBlockBytes + lane * 16;
    const uint32_t ring_full = x + p.full + warp * stages * 8;
    const uint32_t ring_empty = x + p.empty + warp * stages * 8;
    if (p.copies) CopyActivations();
    // Address of this lane's row of 8 elements for ldmatrix. Rows are 128 bytes, swizzled. The
    // chunk of an odd step has the number of the even step's with bit 2 flipped. Activations begin
    // at a multiple of 1024 bytes.
    const uint32_t row_x =
        x + lane % 8 * 128 + (static_cast<uint32_t>((lane / 8) ^ (lane % 8)) << 4);
    float next_scale = warp < units.count ? Scale(units[warp]) : 0.0f;
    if (lane == 0) {  // each warp its own, since one thread initialises barriers one by one
      for (int i = 0; i < stages; ++i) MbarrierInit(ring_empty + 8 * i, 1);
      MbarrierInitFence();
    }
    __syncwarp();
    __syncthreads();
    WaitOnDependentGrids();
    if (p.copies) AwaitActivations();
    PipelineState at;
    for (int item = warp; item < units.count; item += p.plan.warps) {
      const int unit = units[item], segment = SegmentOf(unit), blocks = Blocks(segment);
      const float scale = next_scale;
      if (item + p.plan.warps < units.count) next_scale = Scale(units[item + p.plan.warps]);
      uint32_t block_x = row_x + segment * p.segment_blocks * kBlockX;
      float outer[kTiles][4] = {};
      if (!p.copies) MbarrierWait(x + p.x_full + 8 * segment, 0);
#pragma unroll 1
      for (int block = 0; block < blocks; ++block, block_x += kBlockX) {
        MbarrierWait(ring_full + 8 * at.stage, at.parity);
        const uint32_t stage = ring + at.stage * kBlockBytes;
        Quarter quarters[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) quarters[i].LoadShared(stage, 2 * i);
        float inner[kTiles][4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const StepPairs even = quarters[i].Step(0), odd = quarters[i].Step(1);
          if (i == 3) {
            __syncwarp();
            if (lane == 0) MbarrierArrive(ring_empty + 8 * at.stage);
          }
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            const uint4 columns =
                LdMatrixX4((i % 2 ? block_x ^ 64 : block_x) + i / 2 * kHalfX + t * kTileX);
            Mma(inner[t], even, make_uint2(columns.x, columns.y));
            Mma(inner[t], odd, make_uint2(columns.z, columns.w));
          }
        }
        Fold(Quarter::kScaled ? __shfl_sync(~0u, scale, block) : 1.0f, inner, outer);
        at.Advance(stages);
      }
      StorePartials(unit, outer);
    }
  }

  __device__ __forceinline__ static void Fold(float scale, const float (&inner)[kTiles][4],
                                              float (&outer)[kTiles][4]) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) outer[t][e] = __fmaf_rn(scale, inner[t][e], outer[t][e]);
    }
  }

  __device__ __forceinline__ void StorePartials(int unit, const float (&outer)[kTiles][4]) const {
    if (units.Owns(unit)) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        SharedStore(PartialsAt(unit, t),
                    make_float4(outer[t][0], outer[t][1], outer[t][2], outer[t][3]));
      }
      if (p.plan.finish_in_turn) {
        __syncwarp();
        if (lane == 0) MbarrierArrive(x + p.tile_full + 8 * (TileOf(unit) - FirstOwnTile()));
      }
    } else {
      const int segment = rank * p.plan.rank_segments + SegmentOf(unit);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        StorePartial<kTiles>(p, TileOf(unit), segment, t, lane, outer[t]);
      }
    }
  }

  // Adds up and stores own tiles, one column tile at a time. Where warps compute several units, a
  // warp that is free takes the next column tile and waits for its last unit. Otherwise all units
  // end at about the same time, and warps take column tiles in a fixed order.
  __device__ __forceinline__ void Reduce() const {
    const bool in_turn = p.plan.finish_in_turn;
    if (!in_turn) NamedBarrierSync(1, p.plan.warps * 32);  // producers have exited
    const int first_tile = FirstOwnTile(), items = OwnTiles() * kTiles;
    for (int item = warp;; item += p.plan.warps) {
      if (in_turn) {
        if (lane == 0) item = static_cast<int>(SharedAdd(x + p.taken, 1));
        item = __shfl_sync(~0u, item, 0);
      }
      if (item >= items) return;
      if (in_turn) MbarrierWait(x + p.tile_full + 8 * (item / kTiles), 0);
      const int tile = first_tile + item / kTiles, column_tile = item % kTiles;
      // A tile's first units can belong to the group before.
      const int unit = max(tile * p.plan.rank_segments, units.own_first);
      const int first = rank * p.plan.rank_segments;
      const LocalPartials here = {.first = first + unit - tile * p.plan.rank_segments,
                                  .end = first + p.plan.rank_segments,
                                  .at = PartialsAt(unit, column_tile),
                                  .pitch = kUnitPartialBytes};
      ReduceTile<kTiles>(p, tile, column_tile, lane, here);
    }
  }
};

template <class Quarter, int kTiles>
__global__ void __launch_bounds__((kStreamWarps<Quarter, kTiles> + kStreamMostProducers) * 32, 1)
    Sm90StreamGemmKernel(const __grid_constant__ StreamGemmArgs p,
                         const __grid_constant__ CUtensorMap map) {
#if __CUDA_ARCH__ >= 900
  [[maybe_unused]] const BlockTrace<Quarter> trace;
  extern __shared__ __align__(1024) std::byte shared[];
  LaunchDependentGrids();
  const int group = p.by_ranks(static_cast<int>(blockIdx.x));
  Sm90StreamGemm<Quarter, kTiles> product(p, shared, group,
                                          static_cast<int>(blockIdx.x) - group * p.plan.ranks);
  const int producer = product.warp - p.plan.warps;
  if (producer < 0) {
    if (!p.copies && threadIdx.x == 0) product.LoadActivations(&map);
    if (p.plan.finish_in_turn && threadIdx.x == static_cast<unsigned>(p.plan.warps - 1) * 32) {
      product.MakeTileBarriers();
    }
    __syncwarp();
    product.Compute();
  } else {
    product.Produce(producer);
    if (!p.plan.finish_in_turn) return;
  }
  product.Reduce();
#endif
}

// What follows from the plan: offsets in shared memory, divisors, and how activations are copied.
template <class Quarter, int kTiles>
void SetPlaces(const GemmParams& p, StreamGemmArgs* args) {
  const StreamGemmPlan& plan = args->plan;
  args->copies = p.m <= kCopiedRows;
  args->row_blocks = plan.rank_segments * p.segment_blocks;
  args->row_parts = (args->row_blocks + 1) / 2;
  args->by_row_parts = FastDivmod(args->row_parts);
  args->activations = p.x;
  args->activation_pitch = p.x_pitch;
  args->rings = args->row_blocks * Sm90StreamGemm<Quarter, kTiles>::kBlockX;
  args->sums = args->rings + plan.warps * plan.stages * Quarter::kBlockBytes;
  args->full = args->sums + plan.own_units * kTiles * kPartialBytes;
  args->empty = args->full + plan.warps * plan.stages * 8;
  args->x_full = args->empty + plan.warps * plan.stages * 8;
  args->tile_full = args->x_full + plan.rank_segments * 8;
  args->taken = args->tile_full + plan.own_tiles * 8;
  args->by_ranks = FastDivmod(plan.ranks);
  args->by_rank_segments = FastDivmod(plan.rank_segments);
}

// m <= 8 kTiles. Sets `serves` to false and launches nothing where this kernel cannot serve.
template <class Quarter, int kTiles>
cudaError_t LaunchStreamGemm(const GemmParams& p, std::span<const GemmTarget> targets,
                             const CudaContext& context, bool* serves) {
  StreamGemmArgs args;
  FillGroupedParams(p, targets, context, &args);
  const int tiles = TilesOf(targets);
  // One launch covers as many tiles as the workspace and shared memory have room for sums.
  int at_once = static_cast<int>(std::min<int64_t>(
      tiles, context.workspace_bytes / (int64_t{p.segments} * kTiles * kPartialBytes)));
  const GemmDevice device = {context.sm_count, context.max_shared_bytes};
  GemmShape shape = {.tiles = at_once,
                     .segment_blocks = p.segment_blocks,
                     .segments = p.segments,
                     .column_tiles = kTiles,
                     .block_bytes = Quarter::kBlockBytes,
                     .most_warps = kStreamWarps<Quarter, kTiles>};
  args.plan = PlanStreamGemm(shape, device);
  while (args.plan.ranks == 0 && at_once > context.sm_count) {
    at_once = shape.tiles = (at_once + 1) / 2;
    args.plan = PlanStreamGemm(shape, device);
  }
  *serves = context.has_bulk_copies && args.plan.ranks > 0;
  if (!*serves) return cudaSuccess;

  CUtensorMap map;
  if (const cudaError_t error = DescribeSlices(p.x, p.m, int64_t{p.blocks} * kBlockK, p.x_pitch,
                                               kTiles * kMmaColumns, 2 * p.segment_blocks, &map);
      error != cudaSuccess) {
    return error;
  }
  const auto kernel = &Sm90StreamGemmKernel<Quarter, kTiles>;
  for (args.first_tile = 0; args.first_tile < tiles; args.first_tile += at_once) {
    if (const int left = tiles - args.first_tile; left < at_once) {
      shape.tiles = left;
      args.plan = PlanStreamGemm(shape, device);
    }
    SetPlaces<Quarter, kTiles>(p, &args);
    if (const cudaError_t error = AllowShared(kernel, args.plan.shared_bytes);
        error != cudaSuccess) {
      return error;
    }
    const KernelGrid grid = {
        .thread_blocks = dim3(static_cast<unsigned>(args.plan.thread_blocks())),
        .threads = (args.plan.warps + args.plan.producers) * 32,
        .shared_bytes = args.plan.shared_bytes,
        .programmatic = context.programmatic};
    if (const cudaError_t error = LaunchKernel(kernel, grid, context.stream, args, map);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace fulcrum::cuda

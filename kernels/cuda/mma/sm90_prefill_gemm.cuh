// Class mma for fp8 and bf16 on sm_90a (order.h) for many columns, bound by the tensor cores:
// prefill.
//
// A thread block multiplies two panels (128 rows) with 64 or 128 columns at a time: one warpgroup a
// panel, and a third warpgroup copies. Weights become BF16 in registers and are the A operand.
// Activations come through a tensor map into shared memory and are the B operand, which both
// warpgroups and both thread blocks of a cluster share: each block copies half of them to both.
// That halves the reads from the L2, the next bound. Sums of earlier segments are kept in shared
// memory. Thread blocks are persistent and take tile after tile, so the ring is full when the next
// tile begins; neighbouring tiles have the same weights.
//
// On an H200 a block of 128 K takes 1570 cycles, of which the products are 1024: decoding and
// folding are not hidden.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/gemm/fragment.cuh"
#include "kernels/cuda/gemm/gemm_params.cuh"
#include "kernels/cuda/gemm/sm90_persistent.cuh"

namespace fulcrum::cuda {

// Steps of a tile as the A operand, four registers each.
template <class Weights, int kRegisters>
__device__ __forceinline__ void MakeOperand(const Weights& weights, uint32_t (&a)[kRegisters]) {
#pragma unroll
  for (int step = 0; step < kRegisters / 4; ++step) {
    const StepPairs pairs = weights.Step(step);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[4 * step + i] = pairs.pair[i];
  }
}

// What a stage of the ring holds of a tile, kSteps steps of its block, and how it becomes the A
// operand: four registers a step.
template <bool kNan>
struct Fp8Operand {
  static constexpr int kSteps = 8;
  static constexpr int kBlockBytes = kFp8BlockBytes;
  static constexpr bool kScaled = true;
  static __device__ __forceinline__ void Read(uint32_t at, int lane, uint32_t (&a)[4 * kSteps]) {
    Fp8Fragment<kNan> weights;
#pragma unroll
    for (int i = 0; i < 4; ++i) weights.quarter[i].LoadShared(at + lane * 16, 2 * i);
    MakeOperand(weights, a);
  }
};
struct Bf16Operand {
  static constexpr int kSteps = 4;  // as many as fit beside the sums of earlier segments
  static constexpr int kBlockBytes = kBf16BlockBytes;
  static constexpr bool kScaled = false;
  static __device__ __forceinline__ void Read(uint32_t at, int lane, uint32_t (&a)[4 * kSteps]) {
    Bf16Steps<kSteps> weights;
    weights.LoadShared(at + lane * 16, 0);
    MakeOperand(weights, a);
  }
};

inline constexpr int kTilePanels = 2;   // of a thread block
inline constexpr int kTileCluster = 2;  // thread blocks that share activations
static_assert(kTileWarps == 4 * kTilePanels, "a warpgroup for each panel");

// Bytes of shared memory; a stage begins with its weights.
template <class Operand, int kColumns>
struct PrefillShared {
  static constexpr int kTilePart = Operand::kBlockBytes / 8 * Operand::kSteps;
  static constexpr int kPanelPart = kPanelTiles * kTilePart;
  static constexpr int kWeights = kTilePanels * kPanelPart;
  static constexpr int kBox = kColumns * kBoxK * 2;
  static constexpr int kBoxes = Operand::kSteps * kStepK / kBoxK;
  static constexpr int kStage = kWeights + kBoxes * kBox;
  static constexpr int kSums = kTilePanels * kPanelRows * kColumns * 4;

  static_assert(8 % Operand::kSteps == 0, "a block is a whole number of stages");
  static_assert(Operand::kSteps * kStepK % kBoxK == 0, "a stage is a whole number of boxes");
  static_assert(kStage % 1024 == 0 && kWeights % 1024 == 0,
                "boxes begin where the 128-byte swizzle repeats");
  static_assert(kBox / kTileCluster % 1024 == 0, "and so does each thread block's part of one");
};

template <class Operand, int kColumns>
struct Sm90PrefillGemm {
  using Shared = PrefillShared<Operand, kColumns>;
  static constexpr int kTiles = kColumns / 8;         // column tiles
  static constexpr int kParts = 8 / Operand::kSteps;  // stages of a block
  using Sums = float[kTiles][4];
  static_assert(kColumns == 64 || kColumns == 128, "WgmmaWide has these widths");

  const GemmParams& p;
  const TilePlan& plan;
  std::byte* const shared;
  const int lane, warp, rank, clusters;
  const uint32_t ring, sums_at, full, empty;  // addresses in shared memory
  const int last_panel;

  __device__ __forceinline__ Sm90PrefillGemm(const GemmParams& params, const TilePlan& tile_plan,
                                             std::byte* memory)
      : p(params),
        plan(tile_plan),
        shared(memory),
        lane(threadIdx.x % 32),
        warp(__shfl_sync(~0u, threadIdx.x / 32, 0)),
        rank(static_cast<int>(ClusterRank())),
        clusters(static_cast<int>(gridDim.x) / kTileCluster),
        ring(SharedAddress(memory)),
        sums_at(ring + plan.stages * Shared::kStage),
        full(sums_at + (p.segments > 1 ? Shared::kSums : 0)),
        empty(full + plan.stages * 8),
        last_panel((p.tiles + kPanelTiles - 1) / kPanelTiles - 1) {}

  __device__ __forceinline__ int FirstTile() const {
    return static_cast<int>(blockIdx.x) / kTileCluster;
  }
  __device__ __forceinline__ int FirstPanel(int tile) const {
    return (tile / plan.column_tiles * kTileCluster + rank) * kTilePanels;
  }
  __device__ __forceinline__ int FirstColumn(int tile) const {
    return tile % plan.column_tiles * kColumns;
  }

  __device__ __forceinline__ void InitBarriers() const {
    for (int i = 0; i < plan.stages; ++i) {
      MbarrierInit(full + 8 * i, 1);
      MbarrierInit(empty + 8 * i, kTileCluster * kTileWarps);
    }
    MbarrierInitFence();
  }

  // One thread copies all stages of all tiles.
  __device__ __forceinline__ void Produce(const CUtensorMap& activations) const {
    PipelineState filling;
    const uint64_t policy = EvictNormalPolicy();
    for (int tile = FirstTile(); threadIdx.x == kTileWarps * 32 && tile < plan.tiles;
         tile += clusters) {
      const int column = FirstColumn(tile);
      for (int part = 0; part < p.blocks * kParts; ++part) {
        const uint32_t stage = ring + filling.stage * Shared::kStage;
        const uint32_t barrier = full + 8 * filling.stage;
        MbarrierWait(empty + 8 * filling.stage, filling.parity ^ 1);
        MbarrierArriveExpectTx(barrier, Shared::kStage);
        CopyActivations(activations, stage, part, column, barrier);
        CopyWeights(tile, stage, part, barrier, policy);
        filling.Advance(plan.stages);
      }
    }
  }
  // This thread block's half of the columns, to both thread blocks.
  __device__ __forceinline__ void CopyActivations(const CUtensorMap& activations, uint32_t stage,
                                                  int part, int column, uint32_t barrier) const {
    const uint32_t x = stage + Shared::kWeights + rank * (Shared::kBox / kTileCluster);
    for (int box = 0; box < Shared::kBoxes; ++box) {
      TensorCopyBoxMulticast(
          x + box * Shared::kBox, &activations, (part * Shared::kBoxes + box) * kBoxK,
          column + rank * (kColumns / kTileCluster), barrier, (1 << kTileCluster) - 1);
    }
  }
  __device__ __forceinline__ void CopyWeights(int tile, uint32_t stage, int part, uint32_t barrier,
                                              uint64_t policy) const {
    for (int panel = 0; panel < kTilePanels; ++panel) {
      // Beyond the last panel the last one is computed again and not stored.
      const int64_t own = min(FirstPanel(tile) + panel, last_panel);
      const std::byte* const from =
          p.codes + (own * p.blocks + part / kParts) * kPanelTiles * Operand::kBlockBytes;
      const uint32_t to = stage + panel * Shared::kPanelPart;
      if constexpr (kParts == 1) {
        BulkCopy(to, from, Shared::kPanelPart, barrier, policy);
      } else {
        for (int i = 0; i < kPanelTiles; ++i) {
          BulkCopy(to + i * Shared::kTilePart,
                   from + i * Operand::kBlockBytes + part % kParts * Shared::kTilePart,
                   Shared::kTilePart, barrier, policy);
        }
      }
    }
  }

  // A multiplying warp: its 16 rows of all tiles, segment by segment.
  __device__ __forceinline__ void Compute() const {
    PipelineState reading;
    Sums outer;
    for (int tile = FirstTile(); tile < plan.tiles; tile += clusters) {
      const int panel = FirstPanel(tile) + warp / 4;
      const int64_t scale_row = min(FirstPanel(tile), last_panel) * kPanelRows / kScaleRows;
#pragma unroll 1
      for (int segment = 0; segment < p.segments; ++segment) {
        SumSegment(scale_row, segment, reading, outer);
        if (segment > 0) AddEarlier(outer);
        if (segment + 1 < p.segments) Keep(outer);
      }
      Store(tile, panel, outer);
    }
  }

  __device__ __forceinline__ void SumSegment(int64_t scale_row, int segment, PipelineState& reading,
                                             Sums& outer) const {
    const int first = segment * p.segment_blocks;
    const int blocks = min(p.segment_blocks, p.blocks - first);
    const float scale = Operand::kScaled && lane < blocks
                            ? __ldg(p.scales + scale_row * p.blocks + first + lane)
                            : 1.0f;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) outer[t][e] = 0;
    }
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      Sums inner = {};
#pragma unroll
      for (int part = 0; part < kParts; ++part) MultiplyStage(part, reading, inner);
      const float block_scale = __shfl_sync(~0u, scale, block);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          outer[t][e] = __fmaf_rn(block_scale, inner[t][e], outer[t][e]);
        }
      }
    }
  }

  // Decodes the warp's weights of a stage, multiplies, and gives the stage back to both producers.
  __device__ __forceinline__ void MultiplyStage(int part, PipelineState& reading,
                                                Sums& inner) const {
    const uint32_t stage = ring + reading.stage * Shared::kStage;
    uint32_t a[4 * Operand::kSteps];
    MbarrierWait(full + 8 * reading.stage, reading.parity);
    Operand::Read(stage + warp * Shared::kTilePart, lane, a);
    WarpgroupFenceOperand(a);
    WarpgroupFenceOperand(inner);
    WgmmaFence();
    const uint32_t x = WgmmaDescriptor(stage + Shared::kWeights);
#pragma unroll
    for (int step = 0; step < Operand::kSteps; ++step) {
      WgmmaWide(inner, a + 4 * step, x + step / 4 * (Shared::kBox / 16) + step % 4 * 2,
                part + step > 0);
    }
    WgmmaCommit();
    WgmmaWait();
    WarpgroupFenceOperand(a);
    WarpgroupFenceOperand(inner);
    if (lane < kTileCluster) MbarrierArriveRemote(empty + 8 * reading.stage, lane);
    reading.Advance(plan.stages);
  }

  // This thread's sums of the segments before, in shared memory: [column tile][thread].
  __device__ __forceinline__ float4& Earlier(int column_tile) const {
    return (reinterpret_cast<float4*>(shared + (sums_at - ring)) +
            threadIdx.x)[column_tile * kTileWarps * 32];
  }
  __device__ __forceinline__ void AddEarlier(Sums& outer) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float4 before = Earlier(t);
      outer[t][0] = __fadd_rn(before.x, outer[t][0]);
      outer[t][1] = __fadd_rn(before.y, outer[t][1]);
      outer[t][2] = __fadd_rn(before.z, outer[t][2]);
      outer[t][3] = __fadd_rn(before.w, outer[t][3]);
    }
  }
  __device__ __forceinline__ void Keep(const Sums& outer) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      Earlier(t) = make_float4(outer[t][0], outer[t][1], outer[t][2], outer[t][3]);
    }
  }

  // Pairs of neighbouring outputs where that is possible.
  __device__ __forceinline__ void Store(int tile, int panel, const Sums& sums) const {
    const int64_t row = int64_t{panel} * kPanelRows + warp % 4 * kTileRows;
    const int column = FirstColumn(tile);
    if (StoresPairs(p) && row + kTileRows <= p.n) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t pair =
              MovMatrixTransposed(ResultPair(sums[t][2 * half], sums[t][2 * half + 1]));
          const int m = column + t * 8 + lane / 4;
          if (m < p.m) StorePair(p, m, row + half * 8 + lane % 4 * 2, pair);
        }
      }
    } else {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int64_t n = row + lane / 4 + e / 2 * 8;
          const int m = column + t * 8 + lane % 4 * 2 + e % 2;
          if (n < p.n && m < p.m) StoreResult(p, m, n, sums[t][e]);
        }
      }
    }
  }
};

template <class Operand, int kColumns>
__global__ void __launch_bounds__(kTileThreads, 1)
    Sm90PrefillGemmKernel(GemmParams p, TilePlan plan,
                          const __grid_constant__ CUtensorMap activations) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte shared[];
  const Sm90PrefillGemm<Operand, kColumns> gemm(p, plan, shared);
  if (threadIdx.x == 0) gemm.InitBarriers();
  ClusterSync();
  if (gemm.warp >= kTileWarps) {
    WarpgroupRegDealloc();
    gemm.Produce(activations);
  } else {
    WarpgroupRegAlloc();
    gemm.Compute();
  }
  // The other thread block may still write to this one's shared memory.
  ClusterSync();
#endif
}

inline bool PrefillGemmServes(const CudaContext& context) {
  return context.has_wgmma && context.sm_count >= kTileCluster;
}

// m >= 1; kColumns at a time.
template <class Operand, int kColumns>
cudaError_t LaunchPrefillGemm(const GemmParams& p, const CudaContext& context) {
  using Shared = PrefillShared<Operand, kColumns>;
  CUtensorMap map;
  if (const cudaError_t error = DescribeRows(p.x, p.m, int64_t{p.blocks} * kBlockK, p.x_pitch,
                                             kColumns / kTileCluster, &map);
      error != cudaSuccess) {
    return error;
  }
  constexpr int kRows = kTileCluster * kTilePanels * kPanelTiles;
  const int sums = p.segments > 1 ? Shared::kSums : 0;
  TilePlan plan = {};
  plan.column_tiles = (p.m + kColumns - 1) / kColumns;
  plan.tiles = plan.column_tiles * ((p.tiles + kRows - 1) / kRows);
  plan.stages = std::min(8, (context.max_shared_bytes - sums) / (Shared::kStage + 16));
  const auto kernel = &Sm90PrefillGemmKernel<Operand, kColumns>;
  const int shared = plan.stages * (Shared::kStage + 16) + sums;
  if (const cudaError_t error = AllowShared(kernel, shared); error != cudaSuccess) return error;
  const int clusters = std::min(plan.tiles, context.sm_count / kTileCluster);
  return LaunchKernel(kernel, TileGrid(clusters, kTileCluster, shared), context.stream, p, plan,
                      map);
}

}  // namespace fulcrum::cuda

// Class mma for fp8 and bf16 on sm_90a (order.h) for many columns, bound by the tensor cores:
// prefill.
//
// A thread block multiplies two panels (128 rows) with 64 or 128 columns at a time, a warpgroup a
// panel; a third copies. Weights become BF16 in registers and are the A operand, activations come
// through a tensor map into shared memory, shared by both warpgroups and by the thread blocks of a
// cluster: each copies its share of them to all, since what is read from the L2 is the next bound.
// Weights are decoded while those before are multiplied, and one warpgroup folds while the other
// multiplies. Sums of earlier segments wait in shared memory. Thread blocks stay and take tile
// after tile, so the ring is full when the next begins; neighbours have the same weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_launch.cuh"

namespace fulcrum::cuda {

inline constexpr int kTileCluster = 4;  // thread blocks that share activations
inline constexpr int kTilePanels = 2;   // of a thread block
// A stage of the ring is half a block of K: smaller ones leave the ring sooner, and of larger ones
// too few would fit beside the sums.
inline constexpr int kPartSteps = 4;
inline constexpr int kParts = 8 / kPartSteps;
static_assert(kPartSteps * kStepK == kBoxK);

// How a part of a tile in shared memory becomes the A operand: four registers a step.
template <bool kNan>
struct Fp8Operand {
  static constexpr int kBlockBytes = kFp8BlockBytes;
  static constexpr bool kScaled = true;
  static __device__ __forceinline__ void Read(uint32_t at, int lane, uint32_t (&a)[16]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Fp8Quarter<kNan> weights = {SharedLoad(at + i * 512 + lane * 16)};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const StepPairs pairs = weights.Step(step);
#pragma unroll
        for (int e = 0; e < 4; ++e) a[8 * i + 4 * step + e] = pairs.pair[e];
      }
    }
  }
};
struct Bf16Operand {
  static constexpr int kBlockBytes = kBf16BlockBytes;
  static constexpr bool kScaled = false;
  static __device__ __forceinline__ void Read(uint32_t at, int lane, uint32_t (&a)[16]) {
#pragma unroll
    for (int step = 0; step < kPartSteps; ++step) {
      const uint4 v = SharedLoad(at + step * 512 + lane * 16);
      a[4 * step] = v.x;
      a[4 * step + 1] = v.z;
      a[4 * step + 2] = v.y;
      a[4 * step + 3] = v.w;
    }
  }
};

// Bytes of shared memory; a stage begins with its weights.
template <class Operand, int kColumns>
struct TileShared {
  static constexpr int kTilePart = Operand::kBlockBytes / kParts;
  static constexpr int kWeights = kTilePanels * kPanelTiles * kTilePart;
  static constexpr int kStage = kWeights + kColumns * kBoxBytes;
  static constexpr int kSums = kTilePanels * kPanelRows * kColumns * 4;
};

template <class Operand, int kColumns>
__global__ void __launch_bounds__(kTileThreads, 1)
    TileProduct(Product p, TilePlan plan, const __grid_constant__ CUtensorMap activations) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = TileShared<Operand, kColumns>;
  extern __shared__ __align__(1024) std::byte shared[];
  constexpr int kTiles = kColumns / 8;
  const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int rank = static_cast<int>(ClusterRank());
  const int clusters = static_cast<int>(gridDim.x) / kTileCluster;
  const uint32_t ring = SharedAddress(shared);
  const uint32_t sums_at = ring + plan.stages * Shared::kStage;
  const uint32_t full = sums_at + (p.segments > 1 ? Shared::kSums : 0);
  const uint32_t empty = full + plan.stages * 8;
  const int last_panel = (p.tiles + kPanelTiles - 1) / kPanelTiles - 1;
  const auto first_panel = [&](int tile) {
    return ((plan.first_group + tile / plan.column_tiles) * kTileCluster + rank) * kTilePanels;
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
    const uint64_t policy = ReadOften();
    for (int tile = static_cast<int>(blockIdx.x) / kTileCluster;
         warp == kTileWarps && tile < plan.tiles; tile += clusters) {
      constexpr int kShare = kColumns / kTileCluster;
      const int column = tile % plan.column_tiles * kColumns + rank * kShare;
      // A lane copies a part of a tile. Past the last panel it is computed again and not stored.
      const int panel = min(first_panel(tile) + lane / kPanelTiles, last_panel);
      const std::byte* from =
          TileCodes(p, panel * kPanelTiles + lane % kPanelTiles, Operand::kBlockBytes);
      for (int part = 0; part < p.blocks * kParts; ++part) {
        const uint32_t stage = ring + filling.stage * Shared::kStage;
        const uint32_t barrier = full + 8 * filling.stage;
        if (lane == 0) {
          BarrierWait(empty + 8 * filling.stage, filling.phase ^ 1);
          BarrierExpect(barrier, Shared::kStage);
          BoxCopyToAll(stage + Shared::kWeights + rank * kShare * kBoxBytes, &activations,
                       part * kBoxK, column, barrier, (1 << kTileCluster) - 1);
        }
        __syncwarp();
        if (lane < kTilePanels * kPanelTiles) {
          BulkCopy(stage + lane * Shared::kTilePart, from + part % kParts * Shared::kTilePart,
                   Shared::kTilePart, barrier, policy);
        }
        if (part % kParts == kParts - 1) from += kPanelTiles * Operand::kBlockBytes;
        filling.Next(plan.stages);
      }
    }
  } else {
    TakeRegisters();
    // [column tile][thread]: a thread's own sums of the segments before.
    float4* const sums = reinterpret_cast<float4*>(shared + (sums_at - ring)) + threadIdx.x;
    const auto scale_of = [&](int tile, int segment) {
      const int64_t row = min(first_panel(tile), last_panel) * kPanelRows / kScaleRows;
      const int block = segment * p.segment_blocks + lane;
      return Operand::kScaled && tile < plan.tiles && block < p.blocks
                 ? __ldg(p.scales + row * p.blocks + block)
                 : 1.0f;
    };
    Ring reading;
    int tile = static_cast<int>(blockIdx.x) / kTileCluster;
    int left = tile < plan.tiles ? ((plan.tiles - 1 - tile) / clusters + 1) * p.blocks * kParts : 0;
    float inner[kTiles][4], outer[kTiles][4];
    // The weights of a part are decoded while the part before is multiplied.
    uint32_t first[4 * kPartSteps], second[4 * kPartSteps];
    const auto read = [&](const Ring& from, uint32_t(&a)[4 * kPartSteps]) {
      BarrierWait(full + 8 * from.stage, from.phase);
      Operand::Read(ring + from.stage * Shared::kStage + warp * Shared::kTilePart, lane, a);
    };
    const auto multiply = [&](uint32_t(&a)[4 * kPartSteps], uint32_t(&next)[4 * kPartSteps],
                              bool more) {
      const uint32_t x = RowsDescriptor(ring + reading.stage * Shared::kStage + Shared::kWeights);
      Pin(a);
      Pin(inner);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < kPartSteps; ++step) {
        WgmmaWide(inner, a + 4 * step, x + step * 2, more || step > 0);
      }
      WgmmaCommit();
      const uint32_t done = empty + 8 * reading.stage;
      reading.Next(plan.stages);
      if (--left > 0) read(reading, next);
      WgmmaWait();
      Pin(a);
      Pin(inner);
      if (lane < kTileCluster) ClusterArrive(done, lane);
    };
    if (left > 0) read(reading, first);
    float scale = scale_of(tile, 0);
    for (; tile < plan.tiles; tile += clusters) {
      const int panel = first_panel(tile) + warp / 4;
#pragma unroll 1
      for (int segment = 0; segment < p.segments; ++segment) {
        const int blocks = min(p.segment_blocks, p.blocks - segment * p.segment_blocks);
        const bool last = segment + 1 == p.segments;
        const float next_scale = scale_of(last ? tile + clusters : tile, last ? 0 : segment + 1);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int e = 0; e < 4; ++e) outer[t][e] = 0;
        }
#pragma unroll 1
        for (int block = 0; block < blocks; ++block) {
          multiply(first, second, false);
          multiply(second, first, true);
          const float block_scale = __shfl_sync(~0u, scale, block);
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              outer[t][e] = __fmaf_rn(block_scale, inner[t][e], outer[t][e]);
            }
          }
        }
        scale = next_scale;
        if (segment > 0) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            const float4 before = sums[t * kTileWarps * 32];
            outer[t][0] = __fadd_rn(before.x, outer[t][0]);
            outer[t][1] = __fadd_rn(before.y, outer[t][1]);
            outer[t][2] = __fadd_rn(before.z, outer[t][2]);
            outer[t][3] = __fadd_rn(before.w, outer[t][3]);
          }
        }
        if (!last) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            sums[t * kTileWarps * 32] =
                make_float4(outer[t][0], outer[t][1], outer[t][2], outer[t][3]);
          }
        }
      }
      const int64_t row = int64_t{panel} * kPanelRows + warp % 4 * kTileRows;
      const int column = tile % plan.column_tiles * kColumns;
      if (StoresPairs(p) && row + kTileRows <= p.n) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t pair =
                Transposed(ResultPair(outer[t][2 * half], outer[t][2 * half + 1]));
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

inline bool TileServes(const CudaContext& context) {
  return context.has_wgmma && context.sm_count >= kTileCluster;
}

// The rows of `groups` clusters from `first_group` on, kColumns columns at a time.
template <class Operand, int kColumns>
class TileLaunch {
 public:
  TileLaunch(const Product& p, const CudaContext& context) : p_(p), context_(context) {
    const int sums = p.segments > 1 ? Shared::kSums : 0;
    plan_.column_tiles = (p.m + kColumns - 1) / kColumns;
    plan_.stages = std::min(12, (context.max_shared_bytes - sums) / (Shared::kStage + 16));
    shared_ = plan_.stages * (Shared::kStage + 16) + sums;
    cudaLaunchAttribute cluster;
    const cudaLaunchConfig_t config =
        ClusterConfig(kTileCluster, 1, shared_, context.stream, &cluster);
    status_ = AllowShared(kKernel, shared_);
    if (status_ == cudaSuccess) {
      status_ = cudaOccupancyMaxActiveClusters(&clusters_, kKernel, &config);
    }
    if (status_ == cudaSuccess && clusters_ == 0) status_ = cudaErrorInvalidConfiguration;
  }

  cudaError_t status() const { return status_; }
  int clusters() const { return clusters_; }  // that run at once
  int column_tiles() const { return plan_.column_tiles; }

  // What so many groups take, in cycles a block of K: each round of tiles is as long as its
  // products, or as the reading of its operands from the L2, where all multiprocessors together are
  // the bound.
  int64_t Cost(int groups) const {
    constexpr int kProducts = 8 * kColumns;
    constexpr int kReadBytes = 26;  // a cycle, measured on an H200
    constexpr int kReads =
        kParts * (Shared::kWeights + kColumns * kBoxBytes / kTileCluster) / kReadBytes;
    const int rounds = (groups * plan_.column_tiles + clusters_ - 1) / clusters_;
    return int64_t{rounds} * std::max(kProducts, kReads);
  }

  cudaError_t Run(int first_group, int groups) const {
    CUtensorMap map;
    if (const cudaError_t error = DescribeRows(p_.x, p_.m, int64_t{p_.blocks} * kBlockK, p_.x_pitch,
                                               kColumns / kTileCluster, &map);
        error != cudaSuccess) {
      return error;
    }
    TilePlan plan = plan_;
    plan.first_group = first_group;
    plan.tiles = plan.column_tiles * groups;
    return LaunchClusters(kKernel, kTileCluster, std::min(plan.tiles, clusters_), shared_,
                          context_.stream, p_, plan, map);
  }

 private:
  using Shared = TileShared<Operand, kColumns>;
  static constexpr auto kKernel = &TileProduct<Operand, kColumns>;

  const Product& p_;
  const CudaContext& context_;
  TilePlan plan_ = {};
  int shared_ = 0, clusters_ = 0;
  cudaError_t status_ = cudaSuccess;
};

// m >= 1. Wide tiles as long as they fill the device, narrow ones for what is left of the rows.
template <class Operand>
cudaError_t LaunchTiles(const Product& p, const CudaContext& context) {
  const TileLaunch<Operand, 128> wide(p, context);
  const TileLaunch<Operand, 64> narrow(p, context);
  for (const cudaError_t error : {wide.status(), narrow.status()}) {
    if (error != cudaSuccess) return error;
  }
  constexpr int kRows = kTileCluster * kTilePanels * kPanelTiles;
  const int groups = (p.tiles + kRows - 1) / kRows;
  // A second launch costs some 2 us.
  const int64_t second_launch = 3500 / p.blocks;
  int head = p.m > 64 ? groups : 0;
  int64_t least = head > 0 ? wide.Cost(groups) : narrow.Cost(groups);
  for (int rounds = 0; rounds * wide.clusters() < groups * wide.column_tiles(); ++rounds) {
    const int whole = rounds * wide.clusters() / wide.column_tiles();
    const int64_t cost =
        wide.Cost(whole) + narrow.Cost(groups - whole) + (whole > 0 ? second_launch : 0);
    if (cost >= least) continue;
    least = cost;
    head = whole;
  }
  cudaError_t error = head > 0 ? wide.Run(0, head) : cudaSuccess;
  if (error == cudaSuccess && head < groups) error = narrow.Run(head, groups - head);
  return error;
}

}  // namespace fulcrum::cuda

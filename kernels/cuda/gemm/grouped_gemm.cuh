// Parameters of a launch over one or several weights that share their activations (a grouped GEMM).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kernels/cuda/device/force_in_register.cuh"
#include "kernels/cuda/gemm/gemm_params.cuh"
#include "kernels/cuda/gemm/mma_step.cuh"
#include "kernels/cuda/layout/layout.h"
#include "kernels/ladder/arm.h"

namespace fulcrum::cuda {

inline constexpr int kMaxGemmTargets = 4;  // of one launch

struct GemmTarget {
  const std::byte* codes;
  const float* scales;
  void* y;
  int64_t y_pitch, n;
  int first_tile;  // among the tiles of all targets in turn
};

// The destination of a thread's four results of a tile and column tile: weight rows 0 and 8 from
// `at` on, for activation rows 0 and 1.
struct ResultPlace {
  std::byte* at;
  int64_t pitch;      // bytes
  int rows, columns;  // that exist from `at` on; zero or negative when there are none

  __device__ __forceinline__ void Store(const float (&sum)[4], bool f32) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (e / 2 * 8 >= rows || e % 2 >= columns) continue;
      StoreResult(at + e % 2 * pitch, f32, e / 2 * 8, sum[e]);
    }
  }
  // Computes the place here, not where it is used.
  __device__ __forceinline__ void ForceInRegisters() {
    ForceInRegister(at), ForceInRegister(pitch), ForceInRegister(rows), ForceInRegister(columns);
  }
};

struct GroupedGemmParams {
  int target_count;
  int first_tile;  // first tile of the part that this launch works on
  int blocks, segment_blocks, segments;
  int m;
  bool y_f32;
  uint4* workspace;
  GemmTarget targets[kMaxGemmTargets];

  // The target of a tile; tiles are counted over all targets.
  __device__ __forceinline__ const GemmTarget& TargetOf(int tile) const {
    int t = 0;
    while (t + 1 < target_count && tile >= targets[t + 1].first_tile) ++t;
    return targets[t];
  }
  // A tile's codes from `block` on; the next block is kPanelTiles blocks further. tile: counted
  // from first_tile.
  __device__ __forceinline__ const std::byte* Codes(int tile, int block, int block_bytes) const {
    const GemmTarget& target = TargetOf(tile + first_tile);
    const int row_tile = tile + first_tile - target.first_tile;
    return target.codes + ((int64_t{row_tile / kPanelTiles} * blocks + block) * kPanelTiles +
                           row_tile % kPanelTiles) *
                              block_bytes;
  }
  __device__ __forceinline__ const float* Scales(int tile, int block) const {
    const GemmTarget& target = TargetOf(tile + first_tile);
    const int row = (tile + first_tile - target.first_tile) * kTileRows;
    return target.scales + int64_t{row / kScaleRows} * blocks + block;
  }
  __device__ __forceinline__ ResultPlace PlaceOf(int tile, int column_tile, int lane) const {
    const GemmTarget& target = TargetOf(tile + first_tile);
    const int64_t row = int64_t{tile + first_tile - target.first_tile} * kTileRows + lane / 4;
    const int column = column_tile * kMmaColumns + lane % 4 * 2;
    const int size = y_f32 ? 4 : 2;
    const int64_t pitch = target.y_pitch * size;
    return {static_cast<std::byte*>(target.y) + column * pitch + row * size, pitch,
            static_cast<int>(min(target.n - row, int64_t{kTileRows})), m - column};
  }
  // Stores the results of one tile and column tile, as Mma leaves them.
  __device__ __forceinline__ void Store(int tile, int column_tile, int lane,
                                        const float (&sum)[4]) const {
    PlaceOf(tile, column_tile, lane).Store(sum, y_f32);
  }
};

// The targets of a launch: at most kMaxGemmTargets at a time.
inline std::span<const GemmTarget> GemmTargetsOf(const ArmArgs& args,
                                                 std::span<const FusedWeight> fused,
                                                 std::array<GemmTarget, kMaxGemmTargets>& targets) {
  const auto target = [](const ResidentWeight* of, void* y, int64_t y_pitch, int first_tile) {
    const auto& weight = *static_cast<const CudaWeight*>(of);
    return GemmTarget{weight.codes(), weight.scales(), y, y_pitch, weight.layout().n, first_tile};
  };
  targets[0] = target(args.weight, args.output, args.output_pitch, 0);
  size_t count = 1;
  for (const FusedWeight& other : fused) {
    const GemmTarget& before = targets[count - 1];
    const auto tiles = static_cast<int>((before.n + kTileRows - 1) / kTileRows);
    targets[count] =
        target(other.weight, other.output, other.output_pitch, before.first_tile + tiles);
    ++count;
  }
  return std::span(targets).first(count);
}

inline int TilesOf(std::span<const GemmTarget> targets) {
  return targets.back().first_tile +
         static_cast<int>((targets.back().n + kTileRows - 1) / kTileRows);
}

inline void FillGroupedParams(const GemmParams& p, std::span<const GemmTarget> targets,
                              const CudaContext& context, GroupedGemmParams* launch) {
  std::copy(targets.begin(), targets.end(), launch->targets);
  launch->target_count = static_cast<int>(targets.size());
  launch->first_tile = 0;
  launch->blocks = p.blocks;
  launch->segment_blocks = p.segment_blocks;
  launch->segments = p.segments;
  launch->m = p.m;
  launch->y_f32 = p.y_f32;
  launch->workspace = reinterpret_cast<uint4*>(context.workspace);
}

}  // namespace fulcrum::cuda

// Arguments of a launch of q2_imma_kernel.cuh: one or several weights of one K, their activations,
// and the plan.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/fast_divmod.cuh"
#include "kernels/cuda/layout/q2_layout.h"
#include "kernels/cuda/q2/q2_imma_plan.h"

namespace fulcrum::cuda {

inline constexpr int kQ2MostTargets = 4;  // of one launch

struct Q2Target {
  const std::byte* tiles;
  void* y;
  int64_t y_pitch, n;
  int first_tile;  // of the launch's tiles: those of all targets in turn
};

struct Q2ImmaArgs {
  Q2Target targets[kQ2MostTargets];
  int target_count, tiles;
  Q2Layout layout;
  int tile_bytes;
  const uint16_t* rows;  // BF16 [m][pitch]: fused
  int64_t pitch;
  const std::byte* x;  // QuantiseForTensorCores: not fused
  int m;
  bool y_f32;
  Q2ImmaPlan plan;
  // Offsets of a step's tiles in a stage, listed one by one so that an address is one addition.
  // From multiples the compiler would make a chain of additions for every chunk.
  int tile_at[kQ2MostStepTiles];
  FastDivmod by_m = FastDivmod(1), by_column_groups = FastDivmod(1);

  __device__ __forceinline__ const Q2Target& TargetOf(int tile) const {
    int t = 0;
    while (t + 1 < target_count && tile >= targets[t + 1].first_tile) ++t;
    return targets[t];
  }
};

}  // namespace fulcrum::cuda

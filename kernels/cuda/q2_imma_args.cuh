// What one launch of q2_imma_kernel.cuh is told: one or several weights of one K, their
// activations, and the plan.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/q2_imma_plan.h"
#include "kernels/cuda/q2_imma_walk.h"

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
  int chunks, scale_shift;  // of the layout
  int tile_bytes;
  Q2ImmaWalk walk;
  const uint16_t* rows;  // BF16 [m][pitch]: fused
  int64_t pitch;
  const std::byte* x;  // QuantiseForTensorCores: not fused
  int m;
  bool y_f32;
  Q2ImmaPlan plan;
  Divider by_m = Divider(1), by_column_groups = Divider(1);

  __device__ __forceinline__ const Q2Target& TargetOf(int tile) const {
    int t = 0;
    while (t + 1 < target_count && tile >= targets[t + 1].first_tile) ++t;
    return targets[t];
  }
};

}  // namespace fulcrum::cuda

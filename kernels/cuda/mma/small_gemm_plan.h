// How sm90_small_gemm.cuh deals a small product out. Nothing here can change a bit of the result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/mma/stream_gemm_plan.h"

namespace fulcrum::cuda {

// `ranks` thread blocks, a cluster, share the tiles of a group, each with its own K segments. A
// warp works on one block of 128 K of one tile at a time.
struct SmallGemmPlan {
  int ranks = 0;  // 0: not for a product of this size
  int rank_segments = 0;
  int groups = 0, group_tiles = 0;
  int sums_here = 0;  // at most: column tiles of tiles whose segments one of them adds up
  int warps = 0;
  int shared_bytes = 0;

  int thread_blocks() const { return ranks * groups; }
};

// By registers: a warp holds a block's weights twice and the sums of all columns.
constexpr int SmallGemmMaxWarps(int column_tiles, int block_bytes) {
  return column_tiles * block_bytes > 8192 ? 16 : 20;
}

inline constexpr int kSumBytes = 32 * 16;  // of a column tile of a tile

// From so many bytes of a block's weights times column tiles on a warp has no registers to hold its
// next block, nor what it works out ahead.
inline constexpr int kSmallGemmNotHeld = 8192;

SmallGemmPlan PlanSmallGemm(const GemmShape& shape, const GemmDevice& device);

}  // namespace fulcrum::cuda

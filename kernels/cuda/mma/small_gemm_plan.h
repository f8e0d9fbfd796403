// How sm90_small_gemm.cuh divides a small product among thread blocks. The plan cannot change a bit
// of the result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/mma/stream_gemm_plan.h"

namespace fulcrum::cuda {

// A cluster of `ranks` thread blocks shares the tiles of a group; each has K segments of its own. A
// warp works on one block of 128 K of one tile at a time.
struct SmallGemmPlan {
  int ranks = 0;  // 0: this kernel does not serve the product
  int rank_segments = 0;
  int groups = 0, group_tiles = 0;
  int sums_here = 0;  // the most (tile, column tile) pairs that one thread block adds up
  int warps = 0;
  int shared_bytes = 0;

  int thread_blocks() const { return ranks * groups; }
};

// Registers limit it: a warp holds the weights of two blocks and the sums of all columns.
constexpr int SmallGemmMaxWarps(int column_tiles, int block_bytes) {
  return column_tiles * block_bytes > 8192 ? 16 : 20;
}

inline constexpr int kSumBytes = 32 * 16;  // sums of a tile and column tile

// From this product of a block's bytes and column tiles on, a warp has no registers to hold its
// next block and the addresses that it computes ahead.
inline constexpr int kSmallGemmNotHeld = 8192;

SmallGemmPlan PlanSmallGemm(const GemmShape& shape, const GemmDevice& device);

}  // namespace fulcrum::cuda

// Arguments of a launch of sm90_stream_gemm.cuh, and the units of a thread block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/fast_divmod.cuh"
#include "kernels/cuda/gemm/grouped_gemm.cuh"
#include "kernels/cuda/mma/stream_gemm_plan.h"

namespace fulcrum::cuda {

// All warps need these first, so they lie together at the front: parameters are read through a
// cache that is cold at the start.
struct StreamGemmNumbers {
  StreamGemmPlan plan;
  FastDivmod by_ranks = FastDivmod(1), by_rank_segments = FastDivmod(1);
  // Offsets in shared memory, bytes; activations come first.
  int rings = 0, sums = 0, full = 0, empty = 0, x_full = 0, tile_full = 0, taken = 0;
  // Whether threads copy the activations, 16 bytes each. Tensor copies wait in one queue with the
  // weights; these copies do not, but they are slower, so they are for few rows.
  bool copies = false;
  int row_blocks = 0, row_parts = 0;  // blocks of a row in this thread block, and pairs of them
  FastDivmod by_row_parts = FastDivmod(1);
  const uint16_t* activations = nullptr;
  int64_t activation_pitch = 0;  // elements
};
inline constexpr int kCopiedRows = 2;  // measured on an H200: a gain at 1, a loss at 4

struct StreamGemmArgs : StreamGemmNumbers, GroupedGemmParams {};

// The units of one thread block in the order in which it computes them: first those of tiles that
// other blocks finish.
struct StreamGemmUnits {
  int first, count;          // units of this rank, tile by tile
  int own_first, own_count;  // units of tiles that this block finishes

  __device__ __forceinline__ StreamGemmUnits(const StreamGemmArgs& p, int group, int rank) {
    const StreamGemmPlan& plan = p.plan;
    first = group * plan.group_units + min(group, plan.longer_groups);
    count = plan.group_units + (group < plan.longer_groups ? 1 : 0);
    // A tile belongs to the group that has its last unit. A group's tiles are divided among its
    // ranks.
    const int tile = p.by_rank_segments(first);
    const int tiles = p.by_rank_segments(first + count) - tile;
    const int end = tile + p.by_ranks(tiles * (rank + 1));
    own_first = max((tile + p.by_ranks(tiles * rank)) * plan.rank_segments, first);
    own_count = max(end * plan.rank_segments - own_first, 0);
  }
  __device__ __forceinline__ bool Owns(int unit) const {
    return unit >= own_first && unit < own_first + own_count;
  }
  __device__ __forceinline__ int operator[](int i) const {
    const int unit =
        i < count - own_count ? own_first + own_count + i : own_first + i - count + own_count;
    return unit < first + count ? unit : unit - count;
  }
};

}  // namespace fulcrum::cuda

// How q2_imma_kernel.cuh divides a product among thread blocks, and the layout of their shared
// memory. The plan cannot change a bit of the result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/layout/q2_layout.h"

namespace fulcrum::cuda {

struct Q2ImmaShape {
  int tiles = 0;  // of 16 rows, of all weights of the launch
  Q2Layout layout = {};
  int m = 0;
};
struct Q2ImmaDevice {
  int multiprocessors = 0;
  int max_shared_bytes = 0;  // of one thread block
  // Bulk copies, and clusters of thread blocks that write to each other's shared memory: two blocks
  // then share a tile, the even chunks one's, the odd ones the other's.
  bool pairs = false;
};

// The kernel instance.
struct Q2ImmaShapeOfWork {
  int warps = 0;          // that multiply: each has 16 / warps lanes of the order of either parity
  int step_tiles = 0;     // that a warp multiplies by what it reads of x once
  int column_tiles = 0;   // of 8 rows of x, of a thread block
  int spread = 0;         // 2: the rows of x are the even columns, see the kernel
  bool x_shared = false;  // x is in shared memory, otherwise in device memory
};

inline constexpr int kQ2Lanes = 16;  // of the order, of one parity
inline constexpr int kQ2MostStepTiles = 4;
inline constexpr int kQ2FinishWarps = 3;  // finishing warps, where there are bulk copies
// The most chunks, over all rows, that every thread block quantises itself. Beyond that a separate
// quantising kernel is faster. Measured on an H200: the separate kernel is slower at 40 and 80
// chunks, equal within 2 % at 160, faster from 320 on.
inline constexpr int kQ2FusedChunks = 160;
// Whether warps copy or quantise their own x. Wider x arrives in pieces, since waiting for all of
// it takes too long.
constexpr bool Q2OwnX(int column_tiles, bool x_shared) { return x_shared && column_tiles <= 2; }

// The thread blocks of a group process the same tiles, each for its own columns of x or its own
// chunks. All groups are resident at once, one thread block a multiprocessor if there are enough
// tiles.
struct Q2ImmaPlan {
  int groups = 0;  // 0: this kernel does not serve the product, or some lane would have no chunk
  int group_tiles = 0, longer_groups = 0;  // tiles of a group; longer_groups groups have one more
  int column_groups = 0;
  int parities = 0;  // 1: one of a pair of thread blocks; 2: a block has all chunks
  Q2ImmaShapeOfWork work = {};
  bool fused = false;  // each thread block quantises its x itself
  int stages = 0;      // steps' tiles in shared memory: halves of tiles, or whole ones
  int tile_bytes = 0;  // there
  int sum_buffers = 0;
  int x_bytes = 0;   // in shared memory
  int x_pieces = 0;  // pieces of x, of `warps` chunks each
  // Offsets in shared memory after the stages: x, the sums of warps, the halves that finishing
  // warps receive, the barriers, the end.
  int x_at = 0, sums_at = 0, received_at = 0, barriers_at = 0, shared_bytes = 0;

  int thread_blocks() const { return groups * column_groups * (parities == 1 ? 2 : 1); }
};

Q2ImmaPlan PlanQ2Imma(const Q2ImmaShape& shape, const Q2ImmaDevice& device);

}  // namespace fulcrum::cuda

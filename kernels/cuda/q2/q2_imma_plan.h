// How q2_imma_kernel.cuh deals a product out to thread blocks, and what their shared memory holds.
// Nothing here can change a bit of the result.
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

// Which kernel.
struct Q2ImmaShapeOfWork {
  int warps = 0;          // that multiply: each has 16 / warps lanes of the order of either parity
  int step_tiles = 0;     // that a warp multiplies by what it reads of x once
  int column_tiles = 0;   // of 8 rows of x, of a thread block
  int spread = 0;         // 2: the rows of x are the even columns, see the kernel
  bool x_shared = false;  // x is in shared memory, else read from the device's
};

inline constexpr int kQ2Lanes = 16;  // of the order, of one parity
inline constexpr int kQ2MostStepTiles = 4;
inline constexpr int kQ2FinishWarps = 3;  // beside them, where there are bulk copies
// Most chunks of rows that a thread block quantises itself: beyond that a kernel of all
// multiprocessors in front of this one is faster. Measured on an H200: slower at 40 and 80 chunks,
// within 2 % at 160, faster at 320 and more.
inline constexpr int kQ2FusedChunks = 160;
// Where warps bring or make their x themselves; wider x arrives piece by piece instead, for it is
// too much to wait for.
constexpr bool Q2OwnX(int column_tiles, bool x_shared) { return x_shared && column_tiles <= 2; }

// A group of thread blocks works through the same tiles, each for its own columns of x or its own
// chunks; all groups run at once, a thread block a multiprocessor where there are tiles enough.
struct Q2ImmaPlan {
  int groups = 0;  // 0: the product does not fit this way, or some lane would have no chunk
  int group_tiles = 0, longer_groups = 0;  // tiles of a group; so many groups have one more
  int column_groups = 0;
  int parities = 0;  // 1: of a pair of thread blocks; 2: a block has all chunks
  Q2ImmaShapeOfWork work = {};
  bool fused = false;  // each thread block quantises its x itself
  int stages = 0;      // steps' tiles in shared memory: halves of tiles, or whole ones
  int tile_bytes = 0;  // there
  int sum_buffers = 0;
  int x_bytes = 0;   // in shared memory
  int x_pieces = 0;  // of `warps` chunks, that arrive together
  // Where in shared memory, after the stages: x, the sums of warps, what finishing warps are
  // sent, the barriers; and the end.
  int x_at = 0, sums_at = 0, received_at = 0, barriers_at = 0, shared_bytes = 0;

  int thread_blocks() const { return groups * column_groups * (parities == 1 ? 2 : 1); }
};

Q2ImmaPlan PlanQ2Imma(const Q2ImmaShape& shape, const Q2ImmaDevice& device);

}  // namespace fulcrum::cuda

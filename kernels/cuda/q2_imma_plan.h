// How q2_imma_kernel.cuh deals a product out to thread blocks, and what their shared memory holds.
// Nothing here can change a bit of the result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fulcrum::cuda {

struct Q2ImmaShape {
  int tiles = 0;       // of 16 rows, of all weights of the launch
  int chunks = 0;      // of 32 k
  int tile_bytes = 0;  // of one tile's weights
  int m = 0;
};
struct Q2ImmaDevice {
  int multiprocessors = 0;
  int max_shared_bytes = 0;  // of one thread block
};

inline constexpr int kQ2ImmaWarps = 16;  // that multiply, each a sixteenth of the chunks
inline constexpr int kQ2PieceChunks = kQ2ImmaWarps;  // of x, that arrive together
inline constexpr int kQ2FusedPasses = 5;        // most of a fused quantise, 8 chunks a warp each
inline constexpr int kQ2SumBytes = 16 * 8 * 4;  // of a tile's column tile

// Tiles of a warp's step: what it reads of x serves them all. As many as registers allow.
constexpr int Q2StepTiles(int column_tiles, bool x_shared) {
  return column_tiles == 1 && x_shared ? 3 : 2;
}

// A group of thread blocks works through the same tiles, each for its own columns of x; all groups
// run at once, a thread block a multiprocessor where there are tiles enough.
struct Q2ImmaPlan {
  int groups = 0;                          // 0: the product does not fit this way
  int group_tiles = 0, longer_groups = 0;  // tiles of a group; so many groups have one more
  int column_groups = 0;
  int column_tiles = 0;   // of 8 rows of x, of a thread block: 1 or 2
  int spread = 0;         // 2: the rows of x are the even columns, see the kernel
  bool fused = false;     // each thread block quantises its x itself
  bool x_shared = false;  // x is in shared memory, else read from the device's
  int step_tiles = 0;     // Q2StepTiles
  int stages = 0;         // tiles in shared memory
  int sum_buffers = 0;    // 1 or 2
  int x_bytes = 0;        // in shared memory
  int x_pieces = 0;
  // Where in shared memory, after the tiles: x, the sums that meet, the barriers; and the end.
  int x_at = 0, sums_at = 0, barriers_at = 0, shared_bytes = 0;

  int thread_blocks() const { return groups * column_groups; }
};

Q2ImmaPlan PlanQ2Imma(const Q2ImmaShape& shape, const Q2ImmaDevice& device);

}  // namespace fulcrum::cuda

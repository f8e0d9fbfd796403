// How sm90_stream_gemm.cuh deals a product out to thread blocks and warps. Nothing here can change
// a bit of the result: only who computes what, and where sums meet.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fulcrum::cuda {

inline constexpr int kStreamMostProducers = 3;
inline constexpr int kStreamMaxWarps = 21;  // with the producers 24: 80 registers a thread

// What there is to do: `tiles` of 16 rows, each of `segments` K segments (order.h) of
// `segment_blocks` blocks of 128 K.
struct GemmShape {
  int tiles = 0;
  int segment_blocks = 0, segments = 0;
  int column_tiles = 0;              // of 8 activation rows: 1, 2 or 4
  int block_bytes = 0;               // of one tile's weights
  int most_warps = kStreamMaxWarps;  // of a thread block, that compute
};
struct GemmDevice {
  int multiprocessors = 0;
  int max_shared_bytes = 0;  // of one thread block
};

// A unit is one segment of one tile. `ranks` thread blocks share the tiles of a group: each holds
// the activations of its own `rank_segments` segments and works on the units of those. All thread
// blocks run at once, one a multiprocessor.
struct StreamGemmPlan {
  int ranks = 0;  // 0: the product does not fit this way
  int rank_segments = 0;
  int groups = 0;
  int group_units = 0, longer_groups = 0;  // units of a thread block; so many groups have one more
  int warps = 0;                           // that compute
  int producers = 0;                       // warps that bring the weights
  int stages = 0;                          // blocks a warp has asked for
  int own_units = 0;                       // at most: units whose sums meet in the thread block
  int own_tiles = 0;                       // at most: tiles that it finishes
  bool finish_in_turn = false;             // tiles one by one, as their units end
  int shared_bytes = 0;

  int thread_blocks() const { return ranks * groups; }
};

StreamGemmPlan PlanStreamGemm(const GemmShape& shape, const GemmDevice& device);

}  // namespace fulcrum::cuda

// How sm90_stream_gemm.cuh divides a product among thread blocks and warps. The plan decides which
// warp computes what and where sums are added; it cannot change a bit of the result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fulcrum::cuda {

inline constexpr int kStreamMostProducers = 3;
inline constexpr int kStreamMaxWarps = 21;  // with the producers 24: 80 registers a thread

// A product: `tiles` tiles of 16 rows, each of `segments` K segments (order.h) of `segment_blocks`
// blocks of 128 K.
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

// A unit is one segment of one tile. `ranks` thread blocks share the tiles of a group. Each holds
// the activations of its own `rank_segments` segments and computes the units of those. All thread
// blocks are resident at once, one a multiprocessor.
struct StreamGemmPlan {
  int ranks = 0;  // 0: this kernel does not serve the product
  int rank_segments = 0;
  int groups = 0;
  int group_units = 0;          // units of a thread block
  int longer_groups = 0;        // that many groups have one unit more
  int warps = 0;                // that compute
  int producers = 0;            // warps warps that copy weights
  int stages = 0;               // blocks of a warp's ring
  int own_units = 0;            // the most units that are added up in one thread block
  int own_tiles = 0;            // the most tiles that one thread block finishes
  bool finish_in_turn = false;  // finish tiles one by one, as their units end
  int shared_bytes = 0;

  int thread_blocks() const { return ranks * groups; }
};

StreamGemmPlan PlanStreamGemm(const GemmShape& shape, const GemmDevice& device);

}  // namespace fulcrum::cuda

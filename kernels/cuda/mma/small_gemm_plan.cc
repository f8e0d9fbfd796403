// See small_gemm_plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mma/small_gemm_plan.h"

#include <algorithm>

namespace fulcrum::cuda {
namespace {

constexpr int Ceil(int a, int b) { return (a + b - 1) / b; }

constexpr int kColumnTileBytes = 8 * 128 * 2;  // activations of one block
// From this many units a multiprocessor on, streaming keeps it busy and is faster.
constexpr int kUnitsEnough = 8;
// The most blocks of a warp, with registers for the next block and without. More are faster
// streamed.
constexpr int kHeldBlocks = 4, kBlocks = 1;
// The most thread blocks of a cluster.
constexpr int kMostRanks = 4;
// How many clusters are resident at once. A cluster lies within one group of multiprocessors, and
// groups differ in size: of clusters of four, 30 are resident on the 132 multiprocessors of an
// H200.
int Clusters(int multiprocessors, int ranks) {
  return ranks > 2 ? multiprocessors / ranks - 3 : multiprocessors / ranks;
}
// Bytes that a multiprocessor reads in the time of waiting for the sums of one other rank.
constexpr int kReduceCost = 13 << 10;

}  // namespace

SmallGemmPlan PlanSmallGemm(const GemmShape& shape, const GemmDevice& device) {
  if (Ceil(shape.tiles * shape.segments, device.multiprocessors) >= kUnitsEnough) return {};
  const int most_blocks =
      shape.column_tiles * shape.block_bytes < kSmallGemmNotHeld ? kHeldBlocks : kBlocks;
  SmallGemmPlan best;
  int least_cost = 0;
  for (int ranks = 1; ranks <= std::min({shape.segments, device.multiprocessors, kMostRanks});
       ++ranks) {
    if (shape.segments % ranks != 0) continue;
    SmallGemmPlan plan = {.ranks = ranks, .rank_segments = shape.segments / ranks};
    const int clusters = Clusters(device.multiprocessors, ranks);
    if (clusters < 1) continue;
    plan.group_tiles = Ceil(shape.tiles, clusters);
    plan.groups = Ceil(shape.tiles, plan.group_tiles);
    const int blocks = plan.rank_segments * shape.segment_blocks;
    const int items = plan.group_tiles * blocks;
    plan.warps = std::min(items, SmallGemmMaxWarps(shape.column_tiles, shape.block_bytes));
    const int activations = blocks * shape.column_tiles * kColumnTileBytes;
    plan.sums_here = Ceil(plan.group_tiles * shape.column_tiles, ranks);
    plan.shared_bytes = activations +
                        (items * shape.column_tiles + plan.sums_here * shape.segments) * kSumBytes +
                        16;
    const int cost = activations + items * shape.block_bytes + (ranks - 1) * kReduceCost;
    if (plan.shared_bytes > device.max_shared_bytes || items > most_blocks * plan.warps) continue;
    if (best.ranks == 0 || cost < least_cost) {
      best = plan;
      least_cost = cost;
    }
  }
  return best;
}

}  // namespace fulcrum::cuda

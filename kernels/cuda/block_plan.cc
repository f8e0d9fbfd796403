// See block_plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/block_plan.h"

#include <algorithm>

namespace fulcrum::cuda {
namespace {

constexpr int Ceil(int a, int b) { return (a + b - 1) / b; }

constexpr int kColumnTileBytes = 8 * 128 * 2;  // of one block's activations
constexpr int kSumBytes = 32 * 16;             // of a column tile
// A warp for a unit keeps a multiprocessor busy from so many units on.
constexpr int kUnitsEnough = 8;
constexpr int kBlocksAWarp = 4;  // at most: more is better streamed
// What a multiprocessor takes in while sums of other thread blocks are waited for, about a
// microsecond.
constexpr int kMeetingCost = 100 << 10;

}  // namespace

BlockPlan PlanBlocks(const StreamShape& shape, const StreamDevice& device) {
  if (Ceil(shape.tiles * shape.segments, device.multiprocessors) >= kUnitsEnough) return {};
  BlockPlan best;
  int least_cost = 0;
  for (int ranks = 1; ranks <= std::min(shape.segments, device.multiprocessors); ++ranks) {
    if (shape.segments % ranks != 0) continue;
    BlockPlan plan = {.ranks = ranks, .rank_segments = shape.segments / ranks};
    plan.group_tiles = Ceil(shape.tiles, device.multiprocessors / ranks);
    plan.groups = Ceil(shape.tiles, plan.group_tiles);
    const int blocks = plan.rank_segments * shape.segment_blocks;
    const int items = plan.group_tiles * blocks;
    plan.warps = std::min(items, BlockMaxWarps(shape.column_tiles, shape.block_bytes));
    const int activations = blocks * shape.column_tiles * kColumnTileBytes;
    plan.shared_bytes =
        activations +
        (items + plan.group_tiles * plan.rank_segments) * shape.column_tiles * kSumBytes + 8;
    const int cost = activations + items * shape.block_bytes + (ranks > 1 ? kMeetingCost : 0);
    if (plan.shared_bytes > device.max_shared_bytes || items > kBlocksAWarp * plan.warps) continue;
    if (best.ranks == 0 || cost < least_cost) {
      best = plan;
      least_cost = cost;
    }
  }
  return best;
}

}  // namespace fulcrum::cuda

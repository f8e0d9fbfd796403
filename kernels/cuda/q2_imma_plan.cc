// See q2_imma_plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/q2_imma_plan.h"

#include <algorithm>

#include "kernels/cuda/q8_rows.h"

namespace fulcrum::cuda {
namespace {

constexpr int Ceil(int a, int b) { return (a + b - 1) / b; }

// Bytes a multiprocessor should have asked for (see stream_plan.cc; whole tiles are coarser).
constexpr int kBytesAhead = 92 << 10;
constexpr int kMostStages = 8;
constexpr int kMostColumnTiles = 2;
constexpr int kStageBarrierBytes = 16, kPieceBarrierBytes = 8;

void Place(const Q2ImmaShape& shape, Q2ImmaPlan* plan) {
  plan->x_at = plan->stages * shape.tile_bytes;
  plan->sums_at = plan->x_at + plan->x_bytes;
  plan->barriers_at = plan->sums_at + plan->sum_buffers * kQ2ImmaWarps * plan->step_tiles *
                                          plan->column_tiles * kQ2SumBytes;
  plan->shared_bytes =
      plan->barriers_at + plan->stages * kStageBarrierBytes + plan->x_pieces * kPieceBarrierBytes;
}

}  // namespace

Q2ImmaPlan PlanQ2Imma(const Q2ImmaShape& shape, const Q2ImmaDevice& device) {
  Q2ImmaPlan plan;
  plan.column_tiles = std::min(Ceil(shape.m, kQ8ColumnTile), kMostColumnTiles);
  plan.spread = shape.m <= kQ8ColumnTile / 2 ? 2 : 1;
  plan.column_groups = Ceil(shape.m, kQ8ColumnTile * plan.column_tiles);
  plan.groups = std::min(shape.tiles, std::max(1, device.multiprocessors / plan.column_groups));
  plan.group_tiles = shape.tiles / plan.groups;
  plan.longer_groups = shape.tiles % plan.groups;
  const int passes = Ceil(Ceil(shape.chunks, kQ2ImmaWarps) * shape.m, 32 / 4);
  for (const bool x_shared : {true, false}) {
    plan.x_shared = x_shared;
    plan.step_tiles = Q2StepTiles(plan.column_tiles, x_shared);
    const int wanted =
        std::clamp(kBytesAhead / shape.tile_bytes + 1, 2 * plan.step_tiles, kMostStages);
    plan.x_pieces = x_shared ? Ceil(shape.chunks, kQ2PieceChunks) : 0;
    plan.fused = x_shared && plan.column_tiles == 1 && passes <= kQ2FusedPasses;
    plan.x_bytes = x_shared ? plan.column_tiles * shape.chunks * kQ8FragmentBytes : 0;
    for (plan.stages = wanted; plan.stages >= plan.step_tiles; --plan.stages) {
      for (plan.sum_buffers = 2; plan.sum_buffers >= 1; --plan.sum_buffers) {
        Place(shape, &plan);
        if (plan.shared_bytes <= device.max_shared_bytes) return plan;
      }
    }
  }
  return {};
}

}  // namespace fulcrum::cuda

// See q2_imma_plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/q2/q2_imma_plan.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/q2/q8_rows.h"

namespace fulcrum::cuda {
namespace {

constexpr int Ceil(int a, int b) { return (a + b - 1) / b; }

// Bytes of copies in flight a multiprocessor (see stream_gemm_plan.cc; steps are coarser).
constexpr int kBytesAhead = 96 << 10;
constexpr int kMostStages = 6;
constexpr int kStageBarrierBytes = 16, kPieceBarrierBytes = 8, kSumBarrierBytes = 16;
constexpr int kFinishBarrierBytes = 16;
constexpr int kStartBytes = 16;

// Best first. Wide instances unpack codes once for all columns. Up to four rows use only the even
// columns of a tile.
std::vector<Q2ImmaShapeOfWork> Choices(int m) {
  if (m <= kQ8ColumnTile / 2) {
    return {{16, 3, 1, 2, true}, {16, 2, 1, 2, true}, {16, 2, 1, 2, false}};
  }
  if (m <= kQ8ColumnTile) {
    return {{16, 3, 1, 1, true}, {16, 2, 1, 1, true}, {16, 2, 1, 1, false}};
  }
  if (m <= 2 * kQ8ColumnTile) return {{8, 4, 2, 1, true}, {16, 2, 2, 1, false}};
  return {{8, 2, 4, 1, true}, {8, 4, 2, 1, true}, {16, 2, 2, 1, false}};
}

// Computes sizes and offsets; false where shared memory does not suffice.
bool Place(const Q2ImmaDevice& device, Q2ImmaPlan* plan) {
  const Q2ImmaShapeOfWork& work = plan->work;
  const int outputs = work.step_tiles * work.column_tiles * 128 / work.spread;
  plan->x_at = plan->stages * work.step_tiles * plan->tile_bytes;
  plan->sums_at = plan->x_at + plan->x_bytes;
  plan->received_at = plan->sums_at + plan->sum_buffers * work.warps * outputs * 4;
  // Room for two steps of received halves: half of the outputs each.
  plan->barriers_at = plan->received_at + (device.pairs ? outputs * 4 : 0);
  plan->shared_bytes = plan->barriers_at + kStartBytes + plan->stages * kStageBarrierBytes +
                       plan->x_pieces * kPieceBarrierBytes + plan->sum_buffers * kSumBarrierBytes +
                       kQ2FinishWarps * kFinishBarrierBytes;
  return plan->shared_bytes <= device.max_shared_bytes;
}

}  // namespace

Q2ImmaPlan PlanQ2Imma(const Q2ImmaShape& shape, const Q2ImmaDevice& device) {
  const Q2Layout& layout = shape.layout;
  if (layout.half_chunks < kQ2Lanes) return {};
  Q2ImmaPlan plan;
  plan.parities = device.pairs ? 1 : 2;
  plan.tile_bytes =
      device.pairs ? std::max(layout.HalfBytes(0), layout.HalfBytes(1)) : layout.TileBytes();
  const int blocks = device.multiprocessors / (device.pairs ? 2 : 1);
  for (const Q2ImmaShapeOfWork& work : Choices(shape.m)) {
    plan.work = work;
    plan.column_groups = Ceil(shape.m, kQ8ColumnTile * work.column_tiles);
    plan.groups = std::min(shape.tiles, std::max(1, blocks / plan.column_groups));
    plan.group_tiles = shape.tiles / plan.groups;
    plan.longer_groups = shape.tiles % plan.groups;
    const int chunks = plan.parities * layout.half_chunks;
    plan.x_bytes = work.x_shared ? work.column_tiles * chunks * kQ8FragmentBytes : 0;
    plan.x_pieces = work.x_shared && device.pairs && !Q2OwnX(work.column_tiles, true)
                        ? Ceil(chunks, work.warps)
                        : 0;
    plan.fused = Q2OwnX(work.column_tiles, work.x_shared) && plan.column_groups == 1 &&
                 chunks * shape.m <= kQ2FusedChunks;
    const int wanted =
        device.pairs
            ? std::clamp(Ceil(kBytesAhead, work.step_tiles * plan.tile_bytes), 2, kMostStages)
            : 1;
    for (plan.stages = wanted; plan.stages >= 1; --plan.stages) {
      for (plan.sum_buffers = device.pairs ? 2 : 1; plan.sum_buffers >= 1; --plan.sum_buffers) {
        if (Place(device, &plan)) return plan;
      }
    }
  }
  return {};
}

}  // namespace fulcrum::cuda

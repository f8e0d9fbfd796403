// See stream_gemm_plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mma/stream_gemm_plan.h"

#include <algorithm>

namespace fulcrum::cuda {
namespace {

constexpr int Ceil(int a, int b) { return (a + b - 1) / b; }

// Bytes of copies in flight a multiprocessor. With fewer the memory idles; with more the data that
// is needed next waits behind data that is needed later (measured on an H200).
constexpr int kBytesAhead = 76 << 10;
constexpr int kLeastStages = 2, kMostStages = 4;
// Polling producers slow the computing warps down, so there are only as many as copy in time.
constexpr int kTwoProducersServe = 12;
constexpr int kColumnTileBytes = 8 * 128 * 2;  // activations of one block
constexpr int kSumBytes = 32 * 16;             // sums of one unit and column tile

// The plan with that many ranks whose warps compute `rounds` units each; its shared_bytes may be
// too large.
StreamGemmPlan PlanRounds(const GemmShape& shape, const GemmDevice& device, int ranks, int rounds) {
  StreamGemmPlan plan = {.ranks = ranks, .rank_segments = shape.segments / ranks};
  const int units = shape.tiles * plan.rank_segments;
  const int most = Ceil(units, device.multiprocessors / ranks);
  // No more groups than reduce the largest share.
  plan.groups = Ceil(units, most);
  plan.group_units = units / plan.groups;
  plan.longer_groups = units % plan.groups;
  plan.warps = Ceil(most, std::max(rounds, Ceil(most, shape.most_warps)));
  plan.producers = plan.warps > kTwoProducersServe ? kStreamMostProducers : 2;
  plan.stages =
      std::clamp(kBytesAhead / (plan.warps * shape.block_bytes), kLeastStages, kMostStages);
  plan.finish_in_turn = most > plan.warps;
  // An own tile lacks at most the units of the group before.
  plan.own_tiles = Ceil(Ceil(most, plan.rank_segments) + 1, ranks);
  plan.own_units = std::min(most, Ceil(Ceil(most, plan.rank_segments), ranks) * plan.rank_segments);
  plan.shared_bytes =
      plan.rank_segments * shape.segment_blocks * shape.column_tiles * kColumnTileBytes +
      plan.warps * plan.stages * (shape.block_bytes + 16) +
      (plan.rank_segments + plan.own_tiles) * 8 + 16 +
      plan.own_units * shape.column_tiles * kSumBytes;
  return plan;
}

}  // namespace

StreamGemmPlan PlanStreamGemm(const GemmShape& shape, const GemmDevice& device) {
  // First as many warps as possible, then more rounds of fewer warps. As few ranks as fit, since
  // sums of one thread block need no exchange through the workspace.
  for (int more_rounds = 0; more_rounds <= shape.most_warps; ++more_rounds) {
    for (int ranks = 1; ranks <= std::min(shape.segments, device.multiprocessors); ++ranks) {
      if (shape.segments % ranks != 0) continue;
      StreamGemmPlan plan = PlanRounds(shape, device, ranks, 1);
      if (more_rounds > 0) {
        const int units = plan.group_units + (plan.longer_groups > 0 ? 1 : 0);
        plan = PlanRounds(shape, device, ranks, Ceil(units, plan.warps) + more_rounds);
      }
      if (plan.shared_bytes <= device.max_shared_bytes) return plan;
    }
  }
  return {};
}

}  // namespace fulcrum::cuda

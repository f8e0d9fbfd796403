// How products are dealt out (stream_gemm_plan.h, small_gemm_plan.h): whatever the shape and the
// device, every unit has one place and everything fits.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cuda/mma/small_gemm_plan.h"
#include "kernels/cuda/mma/stream_gemm_plan.h"
#include "kernels/numerics/order.h"

namespace fulcrum::cuda {
namespace {

constexpr GemmDevice kDevices[] = {{132, 232448}, {114, 232448}, {148, 232448}, {48, 101376}};

template <class Check>
void ForEachCase(const Check& check) {
  for (const GemmDevice& device : kDevices) {
    for (const int64_t n : {16, 1000, 1024, 5120, 6144, 17408, 248077}) {
      for (const int64_t k : {100, 2048, 5120, 6144, 17408, 18944, 53248}) {
        for (const int column_tiles : {1, 2, 4}) {
          for (const int block_bytes : {2048, 4096}) {
            SCOPED_TRACE(testing::Message()
                         << n << " x " << k << ", " << column_tiles << " column tiles of "
                         << block_bytes << ", " << device.multiprocessors << " multiprocessors");
            check(GemmShape{.tiles = static_cast<int>((n + 15) / 16),
                            .segment_blocks = static_cast<int>(numerics::SegmentBlocks(k)),
                            .segments = static_cast<int>(numerics::Segments(k)),
                            .column_tiles = column_tiles,
                            .block_bytes = block_bytes},
                  device);
          }
        }
      }
    }
  }
}

TEST(StreamGemmPlan, EveryUnitHasOneThreadBlockAndAllRunAtOnce) {
  ForEachCase([](const GemmShape& shape, const GemmDevice& device) {
    const StreamGemmPlan plan = PlanStreamGemm(shape, device);
    if (plan.ranks == 0) {
      // Then fewer tiles at a time do, unless one segment's activations are too many.
      GemmShape fewer = shape;
      fewer.tiles = std::min(shape.tiles, device.multiprocessors);
      if (shape.segment_blocks * shape.column_tiles * 2048 + (24 << 10) < device.max_shared_bytes) {
        EXPECT_GT(PlanStreamGemm(fewer, device).ranks, 0);
      }
      return;
    }
    EXPECT_EQ(plan.ranks * plan.rank_segments, shape.segments);
    EXPECT_EQ(plan.groups * plan.group_units + plan.longer_groups,
              shape.tiles * plan.rank_segments);
    EXPECT_LT(plan.longer_groups, plan.groups);
    EXPECT_LE(plan.thread_blocks(), device.multiprocessors);
    EXPECT_LE(plan.shared_bytes, device.max_shared_bytes);
    EXPECT_GE(plan.stages, 2);
    EXPECT_GE(plan.warps, 1);
    EXPECT_LE(plan.warps, kStreamMaxWarps);
    EXPECT_LE(plan.producers, kStreamMostProducers);
    EXPECT_LE(plan.warps, plan.producers * 32);  // a lane each
  });
}

// What the kernel does with a plan, in the same words: own units fit in what was set aside for
// them.
TEST(StreamGemmPlan, OwnSumsFit) {
  ForEachCase([](const GemmShape& shape, const GemmDevice& device) {
    const StreamGemmPlan plan = PlanStreamGemm(shape, device);
    int tiles_owned = 0;
    for (int group = 0; group < plan.groups; ++group) {
      const int first = group * plan.group_units + std::min(group, plan.longer_groups);
      const int end = first + plan.group_units + (group < plan.longer_groups ? 1 : 0);
      const int first_tile = first / plan.rank_segments;
      const int tiles = end / plan.rank_segments - first_tile;
      for (int rank = 0; rank < plan.ranks; ++rank) {
        const int own_first = first_tile + tiles * rank / plan.ranks;
        const int own_end = first_tile + tiles * (rank + 1) / plan.ranks;
        tiles_owned += own_end - own_first;
        const int units =
            own_end * plan.rank_segments - std::max(own_first * plan.rank_segments, first);
        EXPECT_LE(units, plan.own_units) << "group " << group << ", rank " << rank;
        EXPECT_LE(own_end - own_first, plan.own_tiles) << "group " << group << ", rank " << rank;
      }
    }
    if (plan.ranks > 0) {
      EXPECT_EQ(tiles_owned, shape.tiles);
    }
  });
}

TEST(SmallGemmPlan, ServesSmallProductsAndFits) {
  int served = 0;
  ForEachCase([&](const GemmShape& shape, const GemmDevice& device) {
    const SmallGemmPlan plan = PlanSmallGemm(shape, device);
    if (plan.ranks == 0) return;
    ++served;
    EXPECT_LT(shape.tiles * shape.segments, 8 * device.multiprocessors);
    EXPECT_EQ(plan.ranks * plan.rank_segments, shape.segments);
    EXPECT_GE(plan.groups * plan.group_tiles, shape.tiles);
    EXPECT_LT((plan.groups - 1) * plan.group_tiles, shape.tiles);
    EXPECT_LE(plan.thread_blocks(), device.multiprocessors);
    EXPECT_LE(plan.shared_bytes, device.max_shared_bytes);
    EXPECT_LE(plan.warps, SmallGemmMaxWarps(shape.column_tiles, shape.block_bytes));
  });
  EXPECT_GT(served, 0);
  EXPECT_EQ(PlanSmallGemm({.tiles = 64,
                           .segment_blocks = 10,
                           .segments = 4,
                           .column_tiles = 1,
                           .block_bytes = 2048},
                          kDevices[0])
                    .ranks == 0,
            false);
}

}  // namespace
}  // namespace fulcrum::cuda

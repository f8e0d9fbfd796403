// The resident layout of q2_0 and the imma kernel's way through it, on the host: every code and
// scale has its own place, a warp's loads meet no bank twice, the size is near the file's, and the
// kernel's index arithmetic and order, played with plain loops, give the oracle's bits.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/q2_layout.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "kernels/cuda/q2_imma_plan.h"
#include "kernels/cuda/q2_imma_walk.h"
#include "kernels/cuda/q8_rows.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/q2_0.h"
#include "kernels/formats/q8_activation.h"
#include "kernels/numerics/oracle.h"
#include "tests/support/random_weights.h"

namespace fulcrum::cuda {
namespace {

using test::MemoryWeight;
using test::RandomQ2;
using test::WeightKind;

WeightSpec Spec(int64_t n, int64_t k, int block) {
  return {.name = "w", .format = WeightFormat::kQ2_0, .n = n, .k = k, .q2_block = block};
}

struct KAndBlock {
  int64_t k;
  int block;
};
constexpr KAndBlock kCases[] = {{64, 64},    {128, 128},  {192, 64},   {576, 64},  {1024, 128},
                                {2560, 64},  {2560, 128}, {2624, 64},  {4096, 64}, {4160, 64},
                                {5120, 128}, {5120, 64},  {12352, 64}, {17408, 64}};

// What pack_q2.cu does, for 16 rows.
std::vector<uint8_t> PackTile(const MemoryWeight& weight) {
  const WeightSpec& spec = weight.spec();
  const Q2Layout layout(spec);
  std::vector<uint8_t> tile(static_cast<size_t>(layout.TileBytes()));
  const int block_bytes = Q2BlockBytes(spec.q2_block), of_block = spec.q2_block / kQ2ChunkK;
  for (int pair = 0; pair < kQ2Pairs; ++pair) {
    for (int chunk = 0; chunk < layout.chunks; ++chunk) {
      uint8_t codes[2][8];
      uint32_t scales = 0;
      for (int half = 0; half < 2; ++half) {
        const std::byte* const block = weight.rows().data() +
                                       (pair + half * kQ2Pairs) * spec.row_bytes() +
                                       chunk / of_block * block_bytes;
        uint16_t scale;
        std::memcpy(&scale, block, 2);
        scales |= static_cast<uint32_t>(scale) << (16 * half);
        std::memcpy(codes[half], block + 2 + chunk % of_block * 8, 8);
      }
      const Q2ChunkWords words = Q2Interleave(codes[0], codes[1]);
      std::memcpy(&tile[static_cast<size_t>(layout.CodesAt(pair, chunk))], words.word, 16);
      std::memcpy(&tile[static_cast<size_t>(layout.ScalesAt(pair, chunk))], &scales, 4);
    }
  }
  return tile;
}

uint32_t WordAt(const std::vector<uint8_t>& tile, int at) {
  uint32_t word;
  std::memcpy(&word, &tile[static_cast<size_t>(at)], 4);
  return word;
}

TEST(Q2Layout, SizeIsWithinThreePercentOfTheFiles) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{12288, 2560},
                             {17408, 5120},
                             {5120, 17408},
                             {6144, 5120},
                             {1024, 5120}}) {
    for (const int block : {64, 128}) {
      const WeightSpec spec = Spec(n, k, block);
      const double resident = static_cast<double>(n / kQ2TileRows) * Q2Layout(spec).TileBytes();
      EXPECT_GE(resident, static_cast<double>(spec.bytes()));
      EXPECT_LE(resident, 1.03 * static_cast<double>(spec.bytes())) << n << " x " << k;
    }
  }
}

TEST(Q2Layout, EveryWordHasItsOwnPlaceInTheTile) {
  for (const auto& [k, block] : kCases) {
    SCOPED_TRACE(testing::Message() << "K = " << k << " in blocks of " << block);
    const Q2Layout layout(Spec(16, k, block));
    EXPECT_EQ(layout.TileBytes() % 16, 0) << "bulk copies are of 16 bytes";
    std::set<int> places;
    for (int pair = 0; pair < kQ2Pairs; ++pair) {
      for (int chunk = 0; chunk < layout.chunks; ++chunk) {
        const int codes = layout.CodesAt(pair, chunk);
        EXPECT_EQ(codes % 16, 0);
        for (int t = 0; t < 4; ++t) EXPECT_TRUE(places.insert(codes + 4 * t).second);
        if (chunk % (block / kQ2ChunkK) == 0) {
          EXPECT_TRUE(places.insert(layout.ScalesAt(pair, chunk)).second);
        }
      }
    }
    EXPECT_GE(*places.begin(), 0);
    EXPECT_LE(*places.rbegin() + 4, layout.TileBytes());
  }
}

TEST(Q2Layout, AWarpsWordsOfAChunkAreInDifferentBanks) {
  for (const auto& [k, block] : kCases) {
    const Q2Layout layout(Spec(16, k, block));
    for (int chunk = 0; chunk < layout.chunks; ++chunk) {
      std::set<int> code_banks, scale_banks;
      for (int pair = 0; pair < kQ2Pairs; ++pair) {
        for (int t = 0; t < 4; ++t) {
          code_banks.insert((layout.CodesAt(pair, chunk) / 4 + t) % 32);
        }
        scale_banks.insert(layout.ScalesAt(pair, chunk) / 4 % 32);
      }
      EXPECT_EQ(code_banks.size(), 32u);
      EXPECT_EQ(scale_banks.size(), 8u);
    }
  }
}

TEST(Q2Layout, RegistersOfAFragmentHoldTheirCodesAndScales) {
  for (const auto& [k, block] : kCases) {
    const MemoryWeight weight = RandomQ2(16, k, WeightKind::kUniformCodes, 3, block);
    const Q2Layout layout(weight.spec());
    const std::vector<uint8_t> tile = PackTile(weight);
    const auto row = [&weight](int r) {
      return weight.rows().subspan(static_cast<size_t>(r * weight.spec().row_bytes()),
                                   static_cast<size_t>(weight.spec().row_bytes()));
    };
    for (int pair = 0; pair < kQ2Pairs; ++pair) {
      for (int chunk = 0; chunk < layout.chunks; ++chunk) {
        for (int t = 0; t < 4; ++t) {
          const uint32_t word = WordAt(tile, layout.CodesAt(pair, chunk) + 4 * t);
          for (int i = 0; i < 4; ++i) {
            for (int b = 0; b < 4; ++b) {
              const int64_t at = int64_t{chunk} * kQ2ChunkK + 8 * t + 4 * (i / 2) + b;
              const uint32_t code = (word >> (2 * i) & 0x03030303u) >> (8 * b) & 0xffu;
              ASSERT_EQ(static_cast<int>(code), Q2Code(row(pair + 8 * (i % 2)), block, at))
                  << "K = " << k << ", pair " << pair << ", k " << at;
            }
          }
        }
        const uint32_t scales = WordAt(tile, layout.ScalesAt(pair, chunk));
        for (int half = 0; half < 2; ++half) {
          ASSERT_EQ(F16ToF32(static_cast<uint16_t>(scales >> (16 * half))),
                    Q2Scale(row(pair + 8 * half), block, int64_t{chunk} * kQ2ChunkK));
        }
      }
    }
  }
}

// The kernel's walk (q2_imma_kernel.cuh): warps, turns, slabs, running addresses; its integer
// trick; its first product without an addition; its tree.
float KernelsResult(const std::vector<uint8_t>& tile, const Q2Layout& layout, int row,
                    std::span<const int8_t> q, std::span<const float> d8) {
  const int g = row % kQ2Pairs, half = row / kQ2Pairs;
  const auto term = [&](int codes_at, int scales_at, int chunk, bool first, float v) {
    int sum = kRounderBits, fine = kFineRounderBits, sum_q = 0;
    for (int t = 0; t < 4; ++t) {
      const uint32_t word = WordAt(tile, codes_at + 4 * t);
      for (int part = 0; part < 2; ++part) {
        const uint32_t codes = word >> (2 * (2 * part + half)) & 0x03030303u;
        for (int b = 0; b < 4; ++b) {
          const int value = q[static_cast<size_t>(chunk * kQ2ChunkK + 8 * t + 4 * part + b)];
          sum += static_cast<int>(codes >> (8 * b) & 0xff) * value;
          fine += 4 * static_cast<int>(codes >> (8 * b) & 0xff) * value;
          sum_q += value;
        }
      }
    }
    const float offset = std::bit_cast<float>(kRounderBits + sum_q);
    const float s = std::bit_cast<float>(sum) - offset;
    EXPECT_EQ(std::bit_cast<float>(fine) - (offset - (kRounder - kFineRounder)), s);
    const uint32_t scales = WordAt(tile, scales_at);
    const float d =
        F16ToF32(static_cast<uint16_t>(scales >> (16 * half))) * d8[static_cast<size_t>(chunk)];
    return first ? d * s : std::fma(d, s, v);
  };
  const Q2ImmaWalk walk(layout);
  const int last_codes = walk.last_codes + g * walk.last_code_pitch;
  const int last_scales = walk.last_scales + g * walk.last_scale_pitch;
  std::array<float, kQ2ImmaWarps> pairs{};
  for (int warp = 0; warp < kQ2ImmaWarps; ++warp) {
    float pair = 0;
    for (int of_pair = 0; of_pair < 2; ++of_pair) {
      float of_lane = 0;
      int own = warp + of_pair * kQ2ImmaWarps;
      int codes_at = g * walk.code_pitch + own * kQ2ChunkBytes;
      int scales_at = walk.scales_at + g * walk.scale_pitch + (warp >> layout.scale_shift) * 4 +
                      of_pair * walk.scale_step / 2;
      for (; own < walk.first_chunks; own += 32) {
        float v = term(codes_at, scales_at, own, true, 0);
        if (own < walk.further_chunks) {
          for (int slab = 1; slab < walk.full_slabs; ++slab) {
            const int at = slab * walk.slab_bytes;
            v = term(codes_at + at, scales_at + at, slab * kQ2SlabChunks + own, false, v);
          }
          if (own < walk.last_chunks) {
            v = term(codes_at + last_codes, scales_at + last_scales,
                     walk.full_slabs * kQ2SlabChunks + own, false, v);
          }
        }
        of_lane += v;
        codes_at += 32 * kQ2ChunkBytes;
        scales_at += walk.scale_step;
      }
      pair += of_lane;
    }
    pairs[static_cast<size_t>(warp)] = pair;
  }
  for (size_t stride = 8; stride > 0; stride /= 2) {
    for (size_t w = 0; w < stride; ++w) pairs[w] += pairs[w + stride];
  }
  return CanonicalF32(pairs[0] + 0.0f);
}

TEST(Q2Layout, TheKernelsWalkGivesTheOraclesBits) {
  for (const auto& [k, block] : kCases) {
    for (const WeightKind kind : test::kAllWeightKinds) {
      const MemoryWeight weight = RandomQ2(16, k, kind, 5, block);
      const Q2Layout layout(weight.spec());
      const std::vector<uint8_t> tile = PackTile(weight);
      for (const test::ActivationKind input : test::kAllActivationKinds) {
        const std::vector<uint16_t> x = test::RandomActivations(1, k, input, 6);
        std::vector<int8_t> q(x.size());
        std::vector<float> d8(x.size() / kQ2ChunkK);
        QuantizeQ8Row(x, q, d8);
        for (int row = 0; row < kQ2TileRows; ++row) {
          const float expected = *numerics::ReferenceElement(NumericsClass::kExact, weight, row, x);
          ASSERT_EQ(std::bit_cast<uint32_t>(KernelsResult(tile, layout, row, q, d8)),
                    std::bit_cast<uint32_t>(expected))
              << "K = " << k << " in blocks of " << block << ", " << weight.spec().name << ", row "
              << row;
        }
      }
    }
  }
}

TEST(Q2ImmaPlan, EveryTileHasOneGroupAndItAllFits) {
  int in_shared = 0, from_device = 0, none = 0;
  for (const Q2ImmaDevice& device :
       {Q2ImmaDevice{132, 232448}, {108, 166912}, {82, 101376}, {68, 65536}, {1, 232448}}) {
    for (const auto& [k, block] : kCases) {
      for (const int tiles : {1, 3, 64, 320, 768, 1088, 15505}) {
        for (int m = 1; m <= 32; ++m) {
          const Q2Layout layout(Spec(16, k, block));
          const Q2ImmaPlan plan = PlanQ2Imma(
              {.tiles = tiles, .chunks = layout.chunks, .tile_bytes = layout.TileBytes(), .m = m},
              device);
          SCOPED_TRACE(testing::Message() << "K = " << k << ", " << tiles << " tiles, M = " << m
                                          << ", " << device.max_shared_bytes << " bytes");
          if (plan.groups == 0) {
            ++none;
            EXPECT_GT(2 * layout.TileBytes() + (40 << 10), device.max_shared_bytes);
            continue;
          }
          ++(plan.x_shared ? in_shared : from_device);
          EXPECT_EQ(plan.groups * plan.group_tiles + plan.longer_groups, tiles);
          EXPECT_LT(plan.longer_groups, plan.groups);
          EXPECT_GE(plan.group_tiles, 1);
          EXPECT_LE(plan.shared_bytes, device.max_shared_bytes);
          EXPECT_GE(plan.stages, plan.step_tiles);
          EXPECT_GE(plan.column_groups * plan.column_tiles * kQ8ColumnTile, m * plan.spread);
          EXPECT_LT((plan.column_groups - 1) * plan.column_tiles * kQ8ColumnTile, m);
          EXPECT_LE(plan.thread_blocks(), std::max(device.multiprocessors, plan.column_groups));
          EXPECT_TRUE(!plan.fused || (plan.x_shared && plan.column_groups == 1));
        }
      }
    }
  }
  EXPECT_GT(in_shared, 0);
  EXPECT_GT(from_device, 0);
  EXPECT_GT(none, 0);
}

}  // namespace
}  // namespace fulcrum::cuda

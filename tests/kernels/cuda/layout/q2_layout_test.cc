// The resident layout of q2_0 and the imma kernel's way through it, on the host: every code and
// scale has its own place, a warp's loads meet no bank twice, the size is near the file's, and the
// kernel's index arithmetic and order, played with plain loops, give the oracle's bits.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/layout/q2_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "kernels/cuda/q2/q2_imma_plan.h"
#include "kernels/cuda/q2/q8_rows.h"
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

// Eight lanes that own neighbouring chunks load sixteen bytes each at a time.
TEST(Q2Layout, EightLanesCodesAreInDifferentBanks) {
  for (const auto& [k, block] : kCases) {
    const Q2Layout layout(Spec(16, k, block));
    for (int first = 0; first + 8 <= layout.chunks; first += 8) {
      std::set<int> banks;
      for (int chunk = first; chunk < first + 8; ++chunk) {
        banks.insert(layout.CodesAt(1, chunk) / 16 % 8);
      }
      EXPECT_EQ(banks.size(), 8u);
    }
  }
}

TEST(Q2Layout, EitherHalfHasItsCodesAndAllScales) {
  for (const auto& [k, block] : kCases) {
    const Q2Layout layout(Spec(16, k, block));
    for (int parity = 0; parity < 2; ++parity) {
      const int at = layout.HalfAt(parity), end = at + layout.HalfBytes(parity);
      EXPECT_EQ(at % 16, 0) << "bulk copies are of 16 bytes";
      EXPECT_EQ(layout.HalfBytes(parity) % 16, 0);
      EXPECT_EQ(layout.CodesInHalf(parity), layout.CodesAt(0, parity) - at);
      EXPECT_EQ(layout.ScalesInHalf(parity), layout.ScalesAt(0, 0) - at);
      for (int pair = 0; pair < kQ2Pairs; ++pair) {
        for (int chunk = 0; chunk < layout.chunks; ++chunk) {
          EXPECT_GE(layout.ScalesAt(pair, chunk), at);
          EXPECT_LE(layout.ScalesAt(pair, chunk) + 4, end);
          if (chunk % 2 != parity) continue;
          EXPECT_GE(layout.CodesAt(pair, chunk), at);
          EXPECT_LE(layout.CodesAt(pair, chunk) + kQ2ChunkBytes, end);
        }
      }
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

// The kernel's walk (q2_imma_multiply.cuh): parities, lanes, turns, running addresses; its integer
// trick; its first products without an addition; its tree.
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
  constexpr int kLanes = 16, kThreads = kQ2Threads / 2;
  const int scale_turn = (2 * kLanes >> layout.scale_shift) * 4;
  std::array<float, 2> halves{};
  for (int parity = 0; parity < 2; ++parity) {
    std::array<float, kLanes> lanes{};
    for (int lane = 0; lane < std::min(kLanes, layout.half_chunks); ++lane) {
      int codes_at = layout.HalfAt(parity) + layout.CodesInHalf(parity) + g * layout.code_pitch +
                     lane * kQ2ChunkBytes;
      int scales_at = layout.HalfAt(parity) + layout.ScalesInHalf(parity) + g * layout.scale_pitch +
                      (2 * lane >> layout.scale_shift) * 4;
      for (int turn = 0; turn < 4 && lane + turn * kLanes < layout.half_chunks; ++turn) {
        float v = 0;
        int codes = codes_at, scales = scales_at;
        for (int own = lane + turn * kLanes; own < layout.half_chunks; own += kThreads) {
          v = term(codes, scales, 2 * own + parity, own < kThreads, v);
          codes += kThreads * kQ2ChunkBytes;
          scales += 4 * scale_turn;
        }
        float& sum = lanes[static_cast<size_t>(lane)];
        sum = turn == 0 ? v : sum + v;
        codes_at += kLanes * kQ2ChunkBytes;
        scales_at += scale_turn;
      }
    }
    for (size_t stride = kLanes / 2; stride > 0; stride /= 2) {
      for (size_t w = 0; w < stride; ++w) lanes[w] += lanes[w + stride];
    }
    halves[static_cast<size_t>(parity)] = lanes[0];
  }
  return CanonicalF32(halves[0] + halves[1] + 0.0f);
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
  int in_shared = 0, from_device = 0, none = 0, wide = 0, fused = 0;
  for (const Q2ImmaDevice& device : {Q2ImmaDevice{132, 232448, true},
                                     {1, 232448, true},
                                     {108, 166912},
                                     {82, 101376},
                                     {68, 65536}}) {
    for (const auto& [k, block] : kCases) {
      for (const int tiles : {1, 3, 64, 320, 768, 1088, 15505}) {
        for (int m = 1; m <= 32; ++m) {
          const Q2Layout layout(Spec(16, k, block));
          const Q2ImmaPlan plan = PlanQ2Imma({.tiles = tiles, .layout = layout, .m = m}, device);
          SCOPED_TRACE(testing::Message() << "K = " << k << ", " << tiles << " tiles, M = " << m
                                          << ", " << device.max_shared_bytes << " bytes");
          if (plan.groups == 0) {
            ++none;
            EXPECT_TRUE(layout.half_chunks < kQ2Lanes ||
                        2 * layout.TileBytes() + (40 << 10) > device.max_shared_bytes);
            continue;
          }
          const Q2ImmaShapeOfWork& work = plan.work;
          ++(work.x_shared ? in_shared : from_device);
          wide += work.column_tiles == 4 ? 1 : 0;
          fused += plan.fused ? 1 : 0;
          EXPECT_EQ(plan.parities, device.pairs ? 1 : 2);
          EXPECT_EQ(plan.groups * plan.group_tiles + plan.longer_groups, tiles);
          EXPECT_LT(plan.longer_groups, plan.groups);
          EXPECT_GE(plan.group_tiles, 1);
          EXPECT_LE(plan.shared_bytes, device.max_shared_bytes);
          EXPECT_GE(plan.stages, 1);
          EXPECT_GE(plan.sum_buffers, 1);
          EXPECT_GE(plan.tile_bytes, plan.parities == 2 ? layout.TileBytes() : layout.HalfBytes(1));
          EXPECT_GE(plan.tile_bytes, layout.HalfBytes(0));
          EXPECT_GE(plan.x_at, plan.stages * work.step_tiles * plan.tile_bytes);
          for (const int at :
               {plan.tile_bytes, plan.x_at, plan.sums_at, plan.received_at, plan.barriers_at}) {
            EXPECT_EQ(at % 16, 0);
          }
          EXPECT_EQ(plan.x_bytes % plan.parities, 0);
          EXPECT_GE(plan.column_groups * work.column_tiles * kQ8ColumnTile, m * work.spread);
          EXPECT_LT((plan.column_groups - 1) * work.column_tiles * kQ8ColumnTile, m);
          const int blocks = device.pairs ? 2 : 1;
          EXPECT_LE(plan.thread_blocks(),
                    std::max(device.multiprocessors, blocks * plan.column_groups));
          EXPECT_TRUE(!plan.fused || (work.x_shared && plan.column_groups == 1));
        }
      }
    }
  }
  EXPECT_GT(in_shared, 0);
  EXPECT_GT(from_device, 0);
  EXPECT_GT(none, 0);
  EXPECT_GT(wide, 0);
  EXPECT_GT(fused, 0);
}

}  // namespace
}  // namespace fulcrum::cuda

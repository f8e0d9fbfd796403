// The pinned orders, stated a second time and by hand: what oracle.cc computes is what order.h
// says. Three kinds of evidence: small sums whose result depends on the order and was worked out on
// paper; a restatement with other loops, compared bit for bit at many K; and that zero padding
// changes nothing while a permuted order does.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/order.h"

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/numerics/oracle.h"
#include "tests/support/random_weights.h"

namespace fulcrum::numerics {
namespace {

using test::ActivationKind;
using test::WeightKind;

uint32_t Bits(float v) { return std::bit_cast<uint32_t>(v); }

// ---- Segments ----

TEST(OrderSegments, AreTheLeastPowerOfTwoWithAtMost17Blocks) {
  for (int64_t k = 1; k <= 40000; k += k < 5000 ? 1 : 61) {
    const int64_t blocks = (k + 127) / 128;
    int64_t s = 1;
    while ((blocks + s - 1) / s > 17) s *= 2;
    ASSERT_EQ(SegmentBlocks(k), (blocks + s - 1) / s) << k;
    ASSERT_LE(SegmentBlocks(k), kMaxSegmentBlocks) << k;
    // Together they cover the blocks, and none is empty.
    ASSERT_GE(Segments(k) * SegmentBlocks(k), blocks) << k;
    ASSERT_LT((Segments(k) - 1) * SegmentBlocks(k), blocks) << k;
  }
}

// ---- Worked out by hand ----
// BF16 weights: 1 everywhere, so that the activations are the terms. B is so large that adding 1 to
// it is lost (2^24 + 1 is a tie and goes to even).
constexpr float kB = 0x1p24f;

using DotFn = float (*)(std::span<const uint16_t>, std::span<const float>,
                        std::span<const uint16_t>);

float SumOf(DotFn dot, int64_t k, const std::map<int64_t, float>& terms) {
  const std::vector<uint16_t> ones(k, F32ToBf16(1));
  std::vector<uint16_t> x(k, 0);
  for (const auto& [at, value] : terms) x[at] = F32ToBf16(value);
  return dot(ones, {}, x);
}

TEST(OrderByHand, ExactLanesAreTwosOfEveryEight) {
  // One lane adds in ascending k: B + 1 + 1 - B loses both ones.
  EXPECT_EQ(SumOf(ExactDot, 32, {{0, kB}, {1, 1}, {8, 1}, {9, -kB}}), 0);
  EXPECT_EQ(SumOf(ExactDot, 32, {{9, kB}, {16, 1}, {17, 1}, {25, -kB}}), 0);
  // In another lane a one survives until the lanes are added.
  EXPECT_EQ(SumOf(ExactDot, 32, {{0, kB}, {2, 1}, {19, 1}, {9, -kB}}), 2);
}

TEST(OrderByHand, ExactLanesAreAddedZeroTwoThenOneThree) {
  EXPECT_EQ(SumOf(ExactDot, 16, {{0, kB}, {4, -kB}, {2, 1}, {6, 1}}), 2);  // (B - B) + (1 + 1)
  EXPECT_EQ(SumOf(ExactDot, 16, {{0, kB}, {2, -kB}, {4, 1}, {6, 1}}), 1);  // B + (1 - B)
  EXPECT_EQ(SumOf(ExactDot, 16, {{0, kB}, {6, -kB}, {2, 1}, {4, 1}}), 1);
}

TEST(OrderByHand, ExactFoldsTheScaleIntoTheActivation) {
  // x * scale rounds to BF16's neighbour in F32 before the weight is applied: (1 + 2^-23 * 1.5)
  // * 3.
  const uint16_t three[] = {F32ToBf16(3)}, x[] = {F32ToBf16(1.5f)};
  const float scale[] = {1 + 0x1p-23f};
  const float xs = 1.5f * scale[0];
  EXPECT_NE(static_cast<double>(xs), 1.5 * scale[0]);  // it did round
  EXPECT_EQ(ExactDot(three, scale, x), 3 * xs);
  EXPECT_NE(ExactDot(three, scale, x), MmaDot(three, scale, x));  // there the scale comes last
}

TEST(OrderByHand, SegmentSumsAreAddedInAscendingOrder) {
  // K = 5120: segments of 10 blocks, so one term in each is a segment sum.
  constexpr int64_t kSegment = 1280;
  for (const DotFn dot : {ExactDot, MmaDot, BlockfoldDot}) {
    // ((B + 1) + 1) - B loses both; a pairwise sum would give 1.
    EXPECT_EQ(SumOf(dot, 5120, {{0, kB}, {kSegment, 1}, {2 * kSegment, 1}, {3 * kSegment, -kB}}),
              0);
    // ((1 + 1) + B) - B keeps both.
    EXPECT_EQ(SumOf(dot, 5120, {{0, 1}, {kSegment, 1}, {2 * kSegment, kB}, {3 * kSegment, -kB}}),
              2);
    // Block 9 is in segment 0, where its one is lost; in segment 1 it would have survived as 1 - B.
    EXPECT_EQ(SumOf(dot, 5120, {{0, kB}, {kSegment - 128, 1}, {kSegment, -kB}}), 0);
    // Block 10 is in segment 1, where the two ones meet first; in segment 0 both would be lost.
    EXPECT_EQ(SumOf(dot, 5120, {{0, kB}, {kSegment, 1}, {kSegment + 128, 1}, {2 * kSegment, -kB}}),
              2);
  }
}

TEST(OrderByHand, BlocksAreFoldedInAscendingOrder) {
  for (const DotFn dot : {MmaDot, BlockfoldDot}) {
    EXPECT_EQ(SumOf(dot, 512, {{0, kB}, {128, 1}, {256, 1}, {384, -kB}}), 0);
    EXPECT_EQ(SumOf(dot, 512, {{0, 1}, {128, 1}, {256, kB}, {384, -kB}}), 2);
  }
}

TEST(OrderByHand, BlockfoldTakesTheOddOfAPairFirst) {
  EXPECT_EQ(SumOf(BlockfoldDot, 4, {{1, 1}, {0, kB}, {3, 1}, {2, -kB}}), 0);
  EXPECT_EQ(SumOf(BlockfoldDot, 4, {{0, 1}, {1, kB}, {2, 1}, {3, -kB}}), 1);
}

TEST(OrderByHand, BlockfoldTakesThePairsOfSixteenLaneAfterLane) {
  // Pair 4 (k = 8) comes before pair 1 (k = 2): B + 1 - B loses the one, B - B + 1 keeps it.
  EXPECT_EQ(SumOf(BlockfoldDot, 16, {{0, kB}, {8, 1}, {2, -kB}}), 0);
  EXPECT_EQ(SumOf(BlockfoldDot, 16, {{0, kB}, {8, -kB}, {2, 1}}), 1);
  EXPECT_EQ(SumOf(BlockfoldDot, 32, {{0, kB}, {14, 1}, {16, -kB}}), 0);  // sixteens ascend
}

TEST(OrderByHand, MmaStepsAreSixteenWideAndCutAt25Bits) {
  // Within a step the terms are cut 25 bits below the largest, then added exactly, so ones survive
  // beside B; a step later each would have been lost in the accumulator's 24 bits.
  EXPECT_EQ(SumOf(MmaDot, 16, {{0, kB}, {1, 1}, {2, 1}, {15, -kB}}), 2);
  EXPECT_EQ(SumOf(MmaDot, 32, {{0, kB}, {15, 1}, {31, -kB}}), 0);
  EXPECT_EQ(SumOf(MmaDot, 32, {{0, kB}, {16, 1}, {31, -kB}}), 1);
}

TEST(OrderByHand, MmaFoldsTheScaleOnceABlock) {
  // inner = 3, scale = 1 + 2^-23: one rounding of the product, beside an outer that is exact.
  std::vector<uint16_t> w(256, F32ToBf16(1)), x(256, 0);
  x[0] = F32ToBf16(3);
  x[128] = F32ToBf16(-3);
  const std::vector<float> scales = {1 + 0x1p-23f, 1};
  for (const DotFn dot : {MmaDot, BlockfoldDot}) {
    // outer = fma(1, -3, rn(3 + 3 * 2^-23)); the spacing at 3 is 2^-22.
    EXPECT_EQ(dot(w, scales, x), 2 * 0x1p-22f);
  }
}

TEST(OrderByHand, Q2ThreadsLanesAndButterfly) {
  // d = 1, code 2, x = 127 e: a chunk's term is 127 e. Chunk c is thread c % 128. 127 is less than
  // half of the last bit of 127 * 2^26.
  constexpr float kBig = 0x1p26f;
  const auto sum_of = [](const std::map<int64_t, float>& chunks, int64_t k) {
    std::vector<std::byte> row(k / 64 * 18, std::byte{0xaa});
    for (int64_t b = 0; b < k / 64; ++b) {
      row[b * 18] = std::byte{0x00};
      row[b * 18 + 1] = std::byte{0x3c};
    }
    std::vector<uint16_t> x(k, 0);
    for (const auto& [chunk, e] : chunks) x[chunk * 32] = F32ToBf16(127 * e);
    return ExactQ2Dot(row, 64, x) / 127;
  };
  constexpr int64_t k = 128 * 32 * 2;  // two chunks a thread
  // The same thread: lost. Lane 0 adds threads 0, 32, 64, 96 in that order.
  EXPECT_EQ(sum_of({{0, kBig}, {128, 1}, {1, -kBig}}, k), 0);
  EXPECT_EQ(sum_of({{0, kBig}, {32, 1}, {64, -kBig}}, k), 0);
  EXPECT_EQ(sum_of({{0, kBig}, {32, -kBig}, {64, 1}}, k), 1);
  EXPECT_EQ(sum_of({{0, kBig}, {64, 1}, {96, -kBig}}, k), 0);
  // Stride 16 comes first: lanes 0 and 16 cancel before lane 1 joins, lanes 0 and 1 come last.
  EXPECT_EQ(sum_of({{0, kBig}, {16, -kBig}, {1, 1}}, k), 1);
  EXPECT_EQ(sum_of({{0, kBig}, {16, 1}, {1, -kBig}}, k), 0);
  EXPECT_EQ(sum_of({{0, kBig}, {8, 1}, {4, -kBig}}, k), 0);
  EXPECT_EQ(sum_of({{0, kBig}, {4, -kBig}, {2, 1}}, k), 1);
}

struct Class {
  const char* name;
  DotFn dot;
};
constexpr Class kClasses[] = {{"exact", ExactDot}, {"mma", MmaDot}, {"blockfold", BlockfoldDot}};

// ---- What must change bits, and what must not ----

// How many of 64 random BF16 rows (whose products fill F32, unlike those of fp8 codes) change when
// weight and activation i move to permutation(i). One segment.
constexpr int kPermutedK = 2048;
template <class Permutation>
int RowsChanged(DotFn dot, Permutation permutation) {
  int changed = 0;
  for (int row = 0; row < 64; ++row) {
    const std::vector<uint16_t> w =
        test::RowAsBf16(test::RandomBf16(1, kPermutedK, WeightKind::kGaussian, row), 0);
    const std::vector<uint16_t> x =
        test::RandomActivations(1, kPermutedK, ActivationKind::kGaussian, row);
    std::vector<uint16_t> pw(kPermutedK), px(kPermutedK);
    for (int i = 0; i < kPermutedK; ++i) {
      pw[permutation(i)] = w[i];
      px[permutation(i)] = x[i];
    }
    changed += Bits(dot(w, {}, x)) != Bits(dot(pw, {}, px));
  }
  return changed;
}

TEST(OrderPermuting, WithinAnExactLaneChangesBits) {
  EXPECT_GT(RowsChanged(ExactDot, [](int i) { return i ^ 1; }), 10);  // inside a two
  EXPECT_GT(RowsChanged(ExactDot, [](int i) { return (i + 16) % kPermutedK; }),
            10);  // whole sixteens
}

TEST(OrderPermuting, AcrossExactLanesChangesBitsUnlessTheSumIsSymmetric) {
  EXPECT_EQ(RowsChanged(ExactDot, [](int i) { return i ^ 4; }), 0);  // a0 + a2 = a2 + a0
  EXPECT_EQ(RowsChanged(ExactDot, [](int i) { return i ^ 2; }), 0);  // both pairs swap
  const auto swap_0_and_1 = [](int i) { return i % 8 < 4 ? i ^ 2 : i; };
  EXPECT_GT(RowsChanged(ExactDot, swap_0_and_1), 10);
}

TEST(OrderPermuting, WithinAMmaStepChangesNothingAndAcrossStepsDoes) {
  EXPECT_EQ(RowsChanged(MmaDot, [](int i) { return i ^ 15; }), 0);
  EXPECT_GT(RowsChanged(MmaDot, [](int i) { return i ^ 16; }), 10);
}

TEST(OrderPermuting, ABlockfoldPairChangesBits) {
  EXPECT_GT(RowsChanged(BlockfoldDot, [](int i) { return i ^ 1; }), 10);
}

// Zeros of every kind appended to K, as far as the segments stay the same.
TEST(OrderZeroPadding, ChangesNoBit) {
  const std::pair<int64_t, int64_t> cases[] = {{1, 2},       {1, 128},      {1, 2176},
                                               {100, 129},   {127, 128},    {129, 1000},
                                               {5000, 5120}, {17290, 17408}};
  for (const auto& [k, padded_k] : cases) {
    ASSERT_EQ(Segments(k), Segments(padded_k));
    for (const WeightKind wk : test::kAllWeightKinds) {
      for (const ActivationKind xk : test::kAllActivationKinds) {
        const test::MemoryWeight weight = test::RandomFp8(1, k, wk, k);
        const std::vector<uint16_t> w = test::RowAsBf16(weight, 0),
                                    x = test::RandomActivations(1, k, xk, k);
        std::vector<float> scales(weight.scales().begin(), weight.scales().end());
        scales.resize((padded_k + 127) / 128, -3.5f);
        for (const uint16_t zero_w : {0, 0x8000}) {
          for (const uint16_t zero_x : {0, 0x8000}) {
            std::vector<uint16_t> wp = w, xp = x;
            wp.resize(padded_k, zero_w);
            xp.resize(padded_k, zero_x);
            for (const Class& c : kClasses) {
              ASSERT_EQ(Bits(c.dot(w, weight.scales(), x)), Bits(c.dot(wp, scales, xp)))
                  << c.name << " " << k << " to " << padded_k << " " << Name(wk) << " " << Name(xk);
            }
          }
        }
      }
    }
  }
}

// The padding of a block is there whatever its scale: zero times infinity is NaN in the exact
// order, where the scale meets the activation, and in no other.
TEST(OrderZeroPadding, MeetsTheScaleOfItsBlock) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const int64_t k : {130, 256}) {
    const std::vector<uint16_t> w(k, F32ToBf16(1)), x(k, F32ToBf16(2));
    const std::vector<float> scales = {1, inf};
    const bool padded = k % kBlockK != 0;
    EXPECT_EQ(Bits(ExactDot(w, scales, x)), padded ? 0x7fffffffu : Bits(inf));
    EXPECT_EQ(MmaDot(w, scales, x), inf);
    EXPECT_EQ(BlockfoldDot(w, scales, x), inf);
  }
}

TEST(OrderZeroPadding, ChangesNoBitOfQ2) {
  for (const auto& [k, padded_k] : {std::pair<int64_t, int64_t>{64, 128},
                                    {64, 8192},
                                    {2560, 4096},
                                    {4096, 4160},
                                    {5120, 17408}}) {
    for (const WeightKind wk : test::kAllWeightKinds) {
      for (const ActivationKind xk : test::kAllActivationKinds) {
        const test::MemoryWeight weight = test::RandomQ2(1, k, wk, k);
        std::vector<std::byte> row(weight.rows().begin(), weight.rows().end());
        std::vector<uint16_t> x = test::RandomActivations(1, k, xk, k);
        const uint32_t bits = Bits(ExactQ2Dot(row, 64, x));
        row.resize(padded_k / 64 * 18, std::byte{0});  // code 0 of scale 0
        x.resize(padded_k, 0x8000);
        ASSERT_EQ(bits, Bits(ExactQ2Dot(row, 64, x))) << k << " " << Name(wk) << " " << Name(xk);
      }
    }
  }
}

// A negative result too small for F32 rounds to -0 on the way, and is stored as +0 in every class,
// padded or not.
TEST(OrderNegativeZero, IsStoredAsPositiveZero) {
  const std::vector<uint16_t> w = {E4m3ToBf16(0x81)}, x = {1};  // -2^-9 and 2^-133
  const std::vector<float> scale = {0x1p-16f};
  ASSERT_TRUE(std::signbit(std::fma(Bf16ToF32(w[0]), Bf16ToF32(x[0]) * scale[0], 0.0f)));
  for (const Class& c : kClasses) EXPECT_EQ(Bits(c.dot(w, scale, x)), 0u) << c.name;
  for (const Class& c : kClasses) {
    const std::vector<uint16_t> minus = {0x8000}, one = {0x3f80};
    EXPECT_EQ(Bits(c.dot(minus, {}, one)), 0u) << c.name;
  }
}

TEST(OrderNegativeZero, IsStoredAsPositiveZeroInQ2) {
  // d = -2^-24; the chunk's sum is 127, d8 the least scale there is.
  std::vector<std::byte> row(18, std::byte{0x55});
  row[0] = std::byte{0x01};
  row[1] = std::byte{0x80};
  row[2] = std::byte{0x56};  // weight 0 is d, the others 0
  std::vector<uint16_t> x(64, 0);
  x[0] = 1;
  EXPECT_EQ(Bits(ExactQ2Dot(row, 64, x)), 0u);
}

}  // namespace
}  // namespace fulcrum::numerics

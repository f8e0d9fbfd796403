// The tensor-core step against the outputs of an sm_90 card: every vector, every bit. The same
// comparison must reject the neighbouring models, or it would prove nothing.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/tensor_core.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/tensor_core_model.h"
#include "tests/support/reference_files.h"

namespace fulcrum::numerics {
namespace {

constexpr int kRows = 64, kCols = 8;  // of one tile in a file
using StepFn = std::function<uint32_t(const uint16_t*, const uint16_t*, uint32_t)>;

// One file: int32 tiles, int32 K, then A bf16 [tiles][64][K], B bf16 [tiles][8][K] and the card's
// FP32 outputs [tiles][64][8], each a chain over K in steps of 16 from +0.
struct CardOutputs {
  int tiles = 0, k = 0;
  std::vector<uint16_t> a, b;
  std::vector<uint32_t> out;
};

CardOutputs Read(int k, int mode) {
  const std::vector<std::byte> bytes =
      test::ReadBytes(absl::StrCat("tensor_core_sm90/k", k, "_m", mode, ".bin"));
  CardOutputs c;
  if (bytes.size() < 8) return c;
  std::memcpy(&c.tiles, bytes.data(), 4);
  std::memcpy(&c.k, bytes.data() + 4, 4);
  c.a.resize(static_cast<size_t>(c.tiles) * kRows * c.k);
  c.b.resize(static_cast<size_t>(c.tiles) * kCols * c.k);
  c.out.resize(static_cast<size_t>(c.tiles) * kRows * kCols);
  if (bytes.size() != 8 + c.a.size() * 2 + c.b.size() * 2 + c.out.size() * 4) return {};
  const std::byte* at = bytes.data() + 8;
  std::memcpy(c.a.data(), at, c.a.size() * 2);
  std::memcpy(c.b.data(), at + c.a.size() * 2, c.b.size() * 2);
  std::memcpy(c.out.data(), at + (c.a.size() + c.b.size()) * 2, c.out.size() * 4);
  return c;
}

int Mismatches(const CardOutputs& card, const StepFn& step) {
  int wrong = 0;
  for (int i = 0; i < card.tiles * kRows * kCols; ++i) {
    const int tile = i / (kRows * kCols), row = i / kCols % kRows, col = i % kCols;
    const uint16_t* const a = &card.a[static_cast<size_t>(tile * kRows + row) * card.k];
    const uint16_t* const b = &card.b[static_cast<size_t>(tile * kCols + col) * card.k];
    uint32_t acc = 0;
    for (int k = 0; k < card.k; k += 16) acc = step(a + k, b + k, acc);
    wrong += acc != card.out[static_cast<size_t>(i)];
  }
  return wrong;
}

class TensorCoreCardFile : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(Sm90, TensorCoreCardFile,
                         ::testing::Combine(::testing::Values(16, 32, 128), ::testing::Range(0, 8)),
                         [](const auto& param) {
                           return absl::StrCat("k", std::get<0>(param.param), "_mode",
                                               std::get<1>(param.param));
                         });

TEST_P(TensorCoreCardFile, EveryOutputHasTheCardsBits) {
  const auto [k, mode] = GetParam();
  const CardOutputs card = Read(k, mode);
  ASSERT_EQ(card.k, k) << "the data file is missing or cut";
  ASSERT_GE(card.out.size(), 3000u);
  EXPECT_EQ(Mismatches(card, TensorCoreStep), 0);
}

// Over all files together: each neighbour of the model is wrong somewhere, most of them everywhere.
int AllMismatches(const StepFn& step) {
  int wrong = 0;
  for (const int k : {16, 32, 128}) {
    for (int mode = 0; mode < 8; ++mode) wrong += Mismatches(Read(k, mode), step);
  }
  return wrong;
}

TEST(TensorCoreNeighbour, OtherFractionWidthsAreRejected) {
  EXPECT_EQ(AllMismatches(TensorCoreStep), 0);
  for (const int bits : {23, 24, 26, 27}) {
    EXPECT_GT(AllMismatches([&](const uint16_t* a, const uint16_t* b, uint32_t c) {
                return tensor_core_model::Step(a, b, c, bits);
              }),
              1000)
        << bits << " fraction bits";
  }
}

TEST(TensorCoreNeighbour, AChainOfFmaIsRejected) {
  EXPECT_GT(AllMismatches([](const uint16_t* a, const uint16_t* b, uint32_t c) {
              float acc = std::bit_cast<float>(c);
              for (int i = 0; i < 16; ++i) acc = std::fma(Bf16ToF32(a[i]), Bf16ToF32(b[i]), acc);
              return std::bit_cast<uint32_t>(CanonicalF32(acc));
            }),
            1000);
}

// The sum rounded to nearest rather than cut.
TEST(TensorCoreNeighbour, RoundingToNearestIsRejected) {
  EXPECT_GT(AllMismatches([](const uint16_t* a, const uint16_t* b, uint32_t c) {
              double sum = std::bit_cast<float>(c);
              for (int i = 0; i < 16; ++i) {
                sum += static_cast<double>(Bf16ToF32(a[i])) * Bf16ToF32(b[i]);
              }
              return std::bit_cast<uint32_t>(CanonicalF32(static_cast<float>(sum)));
            }),
            1000);
}

// Hand-computed cases, one per clause of the model.
uint32_t Step(std::initializer_list<std::pair<float, float>> products, float c) {
  uint16_t a[16] = {}, b[16] = {};
  int i = 0;
  for (const auto& [x, y] : products) {
    a[i] = F32ToBf16(x);
    b[i++] = F32ToBf16(y);
  }
  return TensorCoreStep(a, b, std::bit_cast<uint32_t>(c));
}
float Value(uint32_t bits) { return std::bit_cast<float>(bits); }
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(TensorCoreStep, TermsAreCutAt25FractionBits) {
  // 4 * 2^-25 = 2^-23 reaches the last bit of 1; four times just under 2^-25 is cut to nothing.
  EXPECT_EQ(
      Value(Step(
          {{0x1p-10f, 0x1p-15f}, {0x1p-10f, 0x1p-15f}, {0x1p-10f, 0x1p-15f}, {0x1p-10f, 0x1p-15f}},
          1)),
      1 + 0x1p-23f);
  EXPECT_EQ(Value(Step({{0x1.fep-11f, 0x1p-15f},
                        {0x1.fep-11f, 0x1p-15f},
                        {0x1.fep-11f, 0x1p-15f},
                        {0x1.fep-11f, 0x1p-15f}},
                       1)),
            1);
}

TEST(TensorCoreStep, TheSumIsCutTowardZeroOnBothSides) {
  EXPECT_EQ(Value(Step({{0x1.8p-12f, 0x1p-12f}}, 1)), 1);
  EXPECT_EQ(Value(Step({{-0x1.8p-12f, 0x1p-12f}}, -1)), -1);
  EXPECT_EQ(Value(Step({{0x1.8p-12f, 0x1p-11f}}, -1)), std::nextafter(-1.0f, 0.0f) + 0x1p-23f);
}

TEST(TensorCoreStep, ProductsAreNotNormalisedBeforeTheyAreAligned) {
  // 1.5 * 1.5 = 2.25 has exponent 0 here, so 2^-25 is kept beside it and cancels exactly.
  EXPECT_EQ(Value(Step({{1.5f, 1.5f}, {-1.5f, 1.5f}, {0x1p-12f, 0x1p-13f}}, 0)), 0x1p-25f);
  EXPECT_EQ(Value(Step({{2, 1}, {-2, 1}, {0x1p-12f, 0x1p-13f}}, 0)), 0);
}

TEST(TensorCoreStep, ZeroTermsHaveNoExponent) {
  EXPECT_EQ(Value(Step({{0x1p127f, 0}, {0x1p-60f, 0x1p-60f}}, 0)), 0x1p-120f);
}

TEST(TensorCoreStep, SubnormalsAreKept) {
  EXPECT_EQ(Step({{0x1p-133f, 0x1p-10f}}, 0), 0x40u);  // 2^-143
  EXPECT_EQ(Value(Step({}, 0x1p-149f)), 0x1p-149f);    // the accumulator passes through
  EXPECT_EQ(Value(Step({{0x1p-126f, 0.5f}}, 0)), 0x1p-127f);
}

TEST(TensorCoreStep, ZerosInfinitiesAndNan) {
  EXPECT_EQ(Step({{1, 1}, {-1, 1}}, 0), 0u);  // an exact zero is +0
  EXPECT_EQ(Value(Step({{0x1p127f, 0x1p127f}}, 0)), kInf);
  EXPECT_EQ(Value(Step({{0x1p127f, -0x1p127f}}, 0)), -kInf);
  EXPECT_EQ(Value(Step({{0x1p127f, 1}, {0x1p127f, 1}}, 0)), kInf);
  EXPECT_EQ(Value(Step({{kInf, 2}}, 1)), kInf);
  EXPECT_EQ(Value(Step({{-2, kInf}}, 1)), -kInf);
  EXPECT_EQ(Value(Step({{1, 1}}, -kInf)), -kInf);
  EXPECT_EQ(Step({{kInf, 0}}, 0), 0x7fffffffu);
  EXPECT_EQ(Step({{kInf, 1}, {-kInf, 1}}, 0), 0x7fffffffu);
  EXPECT_EQ(Step({{-kInf, 1}}, kInf), 0x7fffffffu);
  EXPECT_EQ(Step({{std::nanf(""), 0}}, 0), 0x7fffffffu);
  EXPECT_EQ(Step({}, std::nanf("")), 0x7fffffffu);
}

// Two steps from +0 of an sm_90 card (an H200), found among a million: the first adds up only
// products whose exponents are below kLeastExponent, and its last bit is what a finer sum gets
// wrong.
TEST(TensorCoreStep, SumsOfTheSmallestProductsAreNoFinerThanTheCards) {
  constexpr uint16_t kA[32] = {0x80c3, 0x8026, 0x00c9, 0x80bd, 0x016c, 0x0133, 0x0081, 0x0074,
                               0x8123, 0x8153, 0x809b, 0x0023, 0x010b, 0x0109, 0x8058, 0x0080,
                               0x0075, 0x0050, 0x012d, 0x807d, 0x0056, 0x80a1, 0x8176, 0x0028,
                               0x8062, 0x001a, 0x811d, 0x8036, 0x8011, 0x0096, 0x8028, 0x0166};
  constexpr uint16_t kB[32] = {0xb883, 0x37c2, 0x3653, 0xbacd, 0x3a72, 0x36c1, 0xb6fe, 0xb7f5,
                               0xb99b, 0x3b7b, 0x3bfc, 0x3662, 0xb985, 0x3902, 0xbbd6, 0x3b60,
                               0x3d32, 0x3c96, 0x3b3b, 0xbaca, 0x3bd1, 0xbb98, 0x3cdf, 0x3b9a,
                               0xbc60, 0xb907, 0x3736, 0xbc45, 0x3d21, 0xbaf1, 0x3714, 0x399f};
  EXPECT_EQ(TensorCoreStep(kA + 16, kB + 16, TensorCoreStep(kA, kB, 0)), 0x8003ff84u);
}

}  // namespace
}  // namespace fulcrum::numerics

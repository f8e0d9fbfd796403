// E4M3FN codes against another implementation's table, rounding between all neighbours, and what
// the block encoder promises.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/formats/fp8_block128.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bf16.h"
#include "tests/support/random_weights.h"

namespace fulcrum {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(E4m3, DecodesAsTheReferenceTableDoes) {
  std::ifstream table(FULCRUM_TEST_DATA "/fp8/e4m3_table.csv");
  std::string line;
  ASSERT_TRUE(std::getline(table, line));  // the header
  int rows = 0;
  while (std::getline(table, line)) {
    const auto code = static_cast<uint8_t>(std::stoul(line.substr(0, 2), nullptr, 16));
    const auto bits = static_cast<uint32_t>(std::stoul(line.substr(3, 8), nullptr, 16));
    const float expected = std::bit_cast<float>(bits), actual = E4m3ToF32(code);
    EXPECT_EQ(IsE4m3Nan(code), std::isnan(expected)) << line;
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << line;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(actual), bits) << line;
    }
    ++rows;
  }
  EXPECT_EQ(rows, 256);
}

TEST(E4m3, EveryFiniteCodeIsExactInBf16AndSurvivesTheRoundTrip) {
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    if (IsE4m3Nan(code)) {
      EXPECT_EQ(E4m3ToBf16(code), 0x7fff);
      EXPECT_EQ(F32ToE4m3(E4m3ToF32(code)), 0x7f);
      continue;
    }
    EXPECT_EQ(Bf16ToF32(E4m3ToBf16(code)), E4m3ToF32(code)) << i;
    EXPECT_EQ(std::signbit(E4m3ToF32(code)), i >= 128) << i;
    EXPECT_EQ(F32ToE4m3(E4m3ToF32(code)), code) << i;
  }
}

TEST(E4m3, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint8_t low = 0; low < 0x7e; ++low) {
    const auto high = static_cast<uint8_t>(low + 1);
    const float middle = (E4m3ToF32(low) + E4m3ToF32(high)) / 2;
    const uint8_t even = low % 2 == 0 ? low : high;
    EXPECT_EQ(F32ToE4m3(middle), even) << int{low};
    EXPECT_EQ(F32ToE4m3(std::nextafter(middle, 0.0f)), low) << int{low};
    EXPECT_EQ(F32ToE4m3(std::nextafter(middle, kInfinity)), high) << int{low};
    EXPECT_EQ(F32ToE4m3(-middle), even | 0x80) << int{low};
  }
}

TEST(E4m3, SaturatesAndKeepsNan) {
  EXPECT_EQ(F32ToE4m3(448), 0x7e);
  EXPECT_EQ(F32ToE4m3(464), 0x7e);  // half a step above the largest value
  EXPECT_EQ(F32ToE4m3(465), 0x7e);
  EXPECT_EQ(F32ToE4m3(1e3f), 0x7e);
  EXPECT_EQ(F32ToE4m3(-1e30f), 0xfe);
  EXPECT_EQ(F32ToE4m3(kInfinity), 0x7e);
  EXPECT_EQ(F32ToE4m3(-kInfinity), 0xfe);
  EXPECT_EQ(F32ToE4m3(kNan), 0x7f);
  EXPECT_EQ(F32ToE4m3(-kNan), 0x7f);
  EXPECT_EQ(F32ToE4m3(-0.0f), 0x80);
}

struct Encoded {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};
Encoded Encode(const std::vector<float>& w, int64_t n, int64_t k) {
  Encoded e{std::vector<uint8_t>(w.size()),
            std::vector<float>((n + 127) / 128 * ((k + 127) / 128), -1.0f)};
  EncodeFp8Block128(w, n, k, e.codes, e.scales);
  return e;
}

TEST(EncodeFp8Block128, ScaleIsTheBlocksLargestOver448AndCodesAreNearest) {
  constexpr int64_t n = 130, k = 300;  // ragged in both directions
  test::Rng rng(1);
  std::vector<float> w(n * k);
  for (float& v : w) v = static_cast<float>(rng.Gauss());
  const Encoded e = Encode(w, n, k);
  std::vector<float> amax(2 * 3, 0.0f);
  for (int64_t i = 0; i < n * k; ++i) {
    float& a = amax[i / k / 128 * 3 + i % k / 128];
    a = std::max(a, std::fabs(w[i]));
  }
  for (size_t b = 0; b < amax.size(); ++b) EXPECT_EQ(e.scales[b], amax[b] / 448) << b;
  for (int64_t i = 0; i < n * k; ++i) {
    const float target = w[i] / e.scales[i / k / 128 * 3 + i % k / 128];
    const float chosen = std::fabs(E4m3ToF32(e.codes[i]) - target);
    for (const int step : {-1, 1}) {
      const auto other = static_cast<uint8_t>(e.codes[i] + step);
      if (IsE4m3Nan(other) || (other ^ e.codes[i]) & 0x80) continue;
      ASSERT_LE(chosen, std::fabs(E4m3ToF32(other) - target)) << i;
    }
  }
}

// Weights that a checkpoint can hold are found again exactly: each block has its largest code.
TEST(EncodeFp8Block128, RoundTripsDecodedWeights) {
  constexpr int64_t n = 200, k = 260;
  test::MemoryWeight source = test::RandomFp8(n, k, test::WeightKind::kUniformCodes, 2);
  test::MakeScalesPowersOfTwo(source.mutable_scales());
  for (int64_t n0 = 0; n0 < n; n0 += 128) {
    for (int64_t k0 = 0; k0 < k; k0 += 128) source.mutable_rows()[n0 * k + k0] = std::byte{0xfe};
  }
  std::vector<float> w(n * k);
  for (int64_t i = 0; i < n * k; ++i) {
    w[i] = E4m3ToF32(std::to_integer<uint8_t>(source.rows()[i])) *
           source.scales()[i / k / 128 * 3 + i % k / 128];
  }
  const Encoded e = Encode(w, n, k);
  for (size_t b = 0; b < e.scales.size(); ++b) EXPECT_EQ(e.scales[b], source.scales()[b]) << b;
  for (int64_t i = 0; i < n * k; ++i) {
    ASSERT_EQ(e.codes[i], std::to_integer<uint8_t>(source.rows()[i])) << i;
  }
}

TEST(EncodeFp8Block128, ScalesAreNormalAndZeroBlocksHaveScaleOne) {
  constexpr float kLeast = std::numeric_limits<float>::min();
  std::vector<float> w(128 * 256, 0.0f);
  w[128] = std::numeric_limits<float>::denorm_min();  // amax / 448 is below the least float
  Encoded e = Encode(w, 128, 256);
  EXPECT_EQ(e.scales, (std::vector<float>{1, kLeast}));
  for (const uint8_t code : e.codes) EXPECT_EQ(code, 0);
  // Where amax / 448 would be subnormal the error stays within half a step of the least scale.
  for (const float value : {1e-42f, 3e-40f, 1e-38f, 5e-36f}) {
    for (size_t i = 0; i < w.size(); ++i) w[i] = value * static_cast<float>(i % 97) / 96;
    e = Encode(w, 128, 256);
    for (size_t i = 0; i < w.size(); ++i) {
      const float scale = e.scales[i / 128 % 2];
      ASSERT_TRUE(std::isnormal(scale));
      const double error = std::fabs(double{E4m3ToF32(e.codes[i])} * scale - w[i]);
      ASSERT_LE(error, std::max(0x1p-136, double{w[i]} / 16)) << value << " " << i;
    }
  }
}

TEST(EncodeFp8Block128, NanIsKeptForTheLoadCheckToFind) {
  std::vector<float> w = {1, kNan, -2};
  const Encoded e = Encode(w, 1, 3);
  EXPECT_EQ(e.scales[0], 2.0f / 448);
  EXPECT_EQ(e.codes[1], 0x7f);
  EXPECT_EQ(e.codes[2], 0xfe);
}

TEST(EncodeFp8Block128, NearTheEndOfF32TheLargestCodeTimesTheScaleStaysFinite) {
  float amax = std::numeric_limits<float>::max();
  for (int i = 0; i < 1000; ++i, amax = std::nextafter(amax, 0.0f)) {
    uint8_t code = 0;
    float scale = 0;
    EncodeFp8Block128(std::span(&amax, 1), 1, 1, std::span(&code, 1), std::span(&scale, 1));
    ASSERT_EQ(code, 0x7e);
    ASSERT_TRUE(std::isfinite(scale * kE4m3Largest)) << i;
    ASSERT_EQ(scale, amax / kE4m3Largest);
  }
}

}  // namespace
}  // namespace fulcrum

// BF16 and F16 conversions: a table from another implementation, and every representable F16.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/formats/bf16.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace fulcrum {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Bf16, RoundsAsTheReferenceTableDoes) {
  std::ifstream table(FULCRUM_TEST_DATA "/fp8/bf16_round.csv");
  std::string line;
  ASSERT_TRUE(std::getline(table, line));  // the header
  int rows = 0;
  while (std::getline(table, line)) {
    const auto f32 = static_cast<uint32_t>(std::stoul(line.substr(0, 8), nullptr, 16));
    const auto bf16 = static_cast<uint16_t>(std::stoul(line.substr(9, 4), nullptr, 16));
    EXPECT_EQ(F32ToBf16(std::bit_cast<float>(f32)), bf16) << line;
    ++rows;
  }
  EXPECT_GT(rows, 3000);
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto bf16 = static_cast<uint16_t>(bits);
    const uint16_t expected = (bf16 & 0x7fff) > 0x7f80 ? 0x7fff : bf16;
    ASSERT_EQ(F32ToBf16(Bf16ToF32(bf16)), expected) << bits;
  }
}

TEST(Bf16, CanonicalF32HasOneNan) {
  EXPECT_EQ(std::bit_cast<uint32_t>(CanonicalF32(kNan)), 0x7fffffffu);
  EXPECT_EQ(std::bit_cast<uint32_t>(CanonicalF32(-kNan)), 0x7fffffffu);
  EXPECT_EQ(std::bit_cast<uint32_t>(CanonicalF32(std::bit_cast<float>(0x7f800001u))), 0x7fffffffu);
  EXPECT_EQ(CanonicalF32(-kInfinity), -kInfinity);
  EXPECT_TRUE(std::signbit(CanonicalF32(-0.0f)));
}

// The value by the definition of the format.
float F16ByDefinition(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(F16, EveryFiniteValueIsExactBothWays) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto f16 = static_cast<uint16_t>(bits);
    if ((f16 & 0x7c00) == 0x7c00) continue;
    const float value = F16ToF32(f16);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(F16ByDefinition(f16)))
        << bits;
    ASSERT_EQ(F32ToF16(value), f16) << bits;
  }
}

TEST(F16, NonFiniteValues) {
  EXPECT_EQ(F16ToF32(0x7c00), kInfinity);
  EXPECT_EQ(F16ToF32(0xfc00), -kInfinity);
  EXPECT_TRUE(std::isnan(F16ToF32(0x7c01)));
  EXPECT_TRUE(std::isnan(F16ToF32(0xffff)));
  EXPECT_EQ(F32ToF16(kInfinity), 0x7c00);
  EXPECT_EQ(F32ToF16(-kInfinity), 0xfc00);
  EXPECT_EQ(F32ToF16(kNan), 0x7fff);
  EXPECT_EQ(F32ToF16(-kNan), 0x7fff);
}

// Between any two neighbours: the midpoint goes to the even one, anything else to the nearer one.
TEST(F16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = (F16ToF32(low) + F16ToF32(high)) / 2;
    const uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(F32ToF16(middle), even) << low;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.0f)), low) << low;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, kInfinity)), high) << low;
    ASSERT_EQ(F32ToF16(-middle), even | 0x8000) << low;
  }
}

TEST(F16, OverflowsHalfAStepAboveTheLargest) {
  EXPECT_EQ(F32ToF16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(-65520.0f), 0xfc00);
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(F32ToF16(-std::numeric_limits<float>::denorm_min()), 0x8000);
}

}  // namespace
}  // namespace fulcrum

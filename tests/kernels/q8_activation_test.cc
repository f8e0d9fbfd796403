// The activation quantiser of the q2_0 arms: each clause of its rule, and the rule restated.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/formats/q8_activation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bf16.h"
#include "tests/support/random_weights.h"

namespace fulcrum {
namespace {

using ::testing::Each;

struct Quantised {
  std::vector<int8_t> q;
  std::vector<float> d;
};
Quantised Quantise(const std::vector<uint16_t>& x) {
  const size_t chunks = (x.size() + 31) / 32;
  Quantised r{std::vector<int8_t>(chunks * 32, 99), std::vector<float>(chunks, -1.0f)};
  QuantizeQ8Row(x, r.q, r.d);
  return r;
}
std::vector<uint16_t> Bf16(std::initializer_list<float> values, size_t size = 32) {
  std::vector<uint16_t> x;
  for (const float v : values) x.push_back(F32ToBf16(v));
  x.resize(size, 0);
  return x;
}

TEST(QuantizeQ8Row, HalvesGoAwayFromZero) {
  const Quantised r = Quantise(Bf16({127, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, 0.49f, -127}));
  EXPECT_EQ(r.d[0], 1.0f);
  const int expected[] = {127, 1, -1, 2, -2, 3, 0, -127};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(r.q[i], expected[i]) << i;
}

// Below 1e-4 an FP16 scale would have lost bits, and below 6e-8 all of them.
TEST(QuantizeQ8Row, ScaleKeepsF32PrecisionBelowTheRangeOfF16) {
  for (const float amax : {0x1.02p-10f, 0x1.82p-20f, 0x1.fep-60f, 0x1.04p-100f}) {
    const Quantised r = Quantise(Bf16({amax, -amax, amax / 2}));
    EXPECT_EQ(r.d[0], amax / 127.0f);
    EXPECT_NE(r.d[0], F16ToF32(F32ToF16(r.d[0])));
    EXPECT_EQ(r.q[0], 127);
    EXPECT_EQ(r.q[1], -127);
    EXPECT_EQ(r.q[2], 64);  // 63.5, away from zero
  }
}

TEST(QuantizeQ8Row, ZerosOfBothSignsGiveScaleZero) {
  const Quantised r = Quantise(Bf16({0.0f, -0.0f}));
  EXPECT_EQ(std::bit_cast<uint32_t>(r.d[0]), 0u);
  EXPECT_THAT(r.q, Each(0));
}

// The least BF16 subnormals still have a (subnormal) scale; it is coarse, and q stays in range.
TEST(QuantizeQ8Row, SubnormalLargestValue) {
  for (uint16_t bits = 1; bits < 0x80; ++bits) {
    const Quantised r = Quantise({bits, static_cast<uint16_t>(bits | 0x8000)});
    ASSERT_EQ(r.d[0], Bf16ToF32(bits) / 127.0f);
    ASSERT_GT(r.d[0], 0.0f);
    ASSERT_EQ(r.q[0], std::min(127.0f, std::round(Bf16ToF32(bits) / r.d[0]))) << bits;
    ASSERT_EQ(r.q[1], -r.q[0]) << bits;
  }
}

TEST(QuantizeQ8Row, LargestFiniteValueDoesNotOverflow) {
  const Quantised r = Quantise({0x7f7f, 0xff7f, 0x7eff});
  EXPECT_TRUE(std::isfinite(r.d[0]));
  EXPECT_EQ(r.q[0], 127);
  EXPECT_EQ(r.q[1], -127);
}

TEST(QuantizeQ8Row, NonFiniteValueSpoilsItsOwnChunkOnly) {
  for (const uint16_t bad :
       {uint16_t{0x7fff}, uint16_t{0xffc1}, uint16_t{0x7f80}, uint16_t{0xff80}}) {
    for (const int at : {32, 47, 63}) {
      std::vector<uint16_t> x = test::RandomActivations(1, 96, test::ActivationKind::kGaussian, 6);
      const Quantised clean = Quantise(x);
      x[at] = bad;
      const Quantised r = Quantise(x);
      EXPECT_TRUE(std::isnan(r.d[1]));
      for (int i = 0; i < 96; ++i) {
        EXPECT_EQ(r.q[i], i / 32 == 1 ? 0 : clean.q[i]) << i;
      }
      EXPECT_EQ(r.d[0], clean.d[0]);
      EXPECT_EQ(r.d[2], clean.d[2]);
    }
  }
}

TEST(QuantizeQ8Row, PadsToWholeChunksWithZeros) {
  for (const int64_t k : {1, 31, 33, 95}) {
    std::vector<uint16_t> x = test::RandomActivations(1, k, test::ActivationKind::kGaussian, 7);
    const Quantised r = Quantise(x);
    for (size_t i = k; i < r.q.size(); ++i) EXPECT_EQ(r.q[i], 0) << i;
    x.resize(r.q.size(), 0);
    const Quantised padded = Quantise(x);
    EXPECT_EQ(r.q, padded.q);
    EXPECT_EQ(r.d, padded.d);
  }
}

// The rule again, in float64 where the F32 quotient's rounding is applied by hand.
TEST(QuantizeQ8Row, AgreesWithTheRuleRestated) {
  for (const test::ActivationKind kind : test::kAllActivationKinds) {
    const std::vector<uint16_t> x = test::RandomActivations(1, 32 * 500, kind, 8);
    const Quantised r = Quantise(x);
    for (size_t i = 0; i < x.size(); ++i) {
      float amax = 0;
      for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
        amax = std::fmax(amax, std::fabs(Bf16ToF32(x[j])));
      }
      const float d = amax / 127;
      ASSERT_EQ(r.d[i / 32], d);
      int expected = 0;
      if (d != 0) {
        const auto ratio = static_cast<double>(Bf16ToF32(x[i]) / d);
        const double half_away = std::floor(std::fabs(ratio) + 0.5);
        expected = static_cast<int>(std::copysign(std::min(half_away, 127.0), ratio));
      }
      ASSERT_EQ(r.q[i], expected) << i;
    }
  }
}

}  // namespace
}  // namespace fulcrum

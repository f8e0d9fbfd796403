// The short cuts of the device's activation quantiser (q8_rows.h), on the host: the scale of every
// BF16 magnitude, and the rounding that an approximate inverse decides.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/q8_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/formats/bf16.h"

namespace fulcrum::cuda {
namespace {

TEST(Q8Rows, OneRefinementGivesTheScaleOfEveryMagnitude) {
  ASSERT_EQ(kInverse127, 1.0f / 127.0f);
  ASSERT_EQ(std::bit_cast<float>(kRounderBits), kRounder);
  ASSERT_EQ(std::bit_cast<float>(kFineRounderBits), kFineRounder);
  int tried = 0;
  for (uint32_t bits = 1; bits < 0x7f80; ++bits) {
    const float amax = Bf16ToF32(static_cast<uint16_t>(bits));
    if (amax < kLeastRefinable) continue;
    const float quotient = amax * kInverse127;
    ASSERT_EQ(std::fma(std::fma(-127.0f, quotient, amax), kInverse127, quotient), amax / 127.0f);
    ++tried;
  }
  EXPECT_GT(tried, 29000);
}

// Every significand of x against every one of amax, at the exponents where x / scale matters, with
// the inverse off by up to two units: where the short cut is sure it has the rule's answer.
TEST(Q8Rows, WhereTheInverseIsSureItGivesTheRulesCode) {
  int64_t sure = 0, all = 0;
  for (int a = 128; a < 256; ++a) {
    const float amax = static_cast<float>(a), scale = amax / 127.0f;
    for (int shift = 0; shift < 9; ++shift) {
      for (int b = 128; b < 256; ++b) {
        const float x = std::ldexp(static_cast<float>(b), -shift);
        if (x > amax) continue;
        const float expected = std::round(x / scale);
        for (int off = -2; off <= 2; ++off) {
          const float inverse = std::bit_cast<float>(std::bit_cast<int>(1.0f / scale) + off);
          const float ratio = x * inverse, rounded = ratio + kRounder;
          ++all;
          if (!(std::fabs(ratio - (rounded - kRounder)) < kMostOff)) continue;
          ++sure;
          ASSERT_EQ(std::bit_cast<int>(rounded) - kRounderBits, static_cast<int>(expected))
              << x << " of " << amax;
          const float negative = -ratio + kRounder;
          ASSERT_EQ(std::bit_cast<int>(negative) - kRounderBits, -static_cast<int>(expected));
        }
      }
    }
  }
  EXPECT_GT(sure, all / 10 * 9);
  EXPECT_LT(sure, all) << "some are halves";
}

}  // namespace
}  // namespace fulcrum::cuda

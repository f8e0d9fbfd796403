// The short cuts of the device's activation quantiser (q8_rows.h), on the host: the scale of every
// BF16 magnitude, quotients by a refined inverse, and rounding by truncating sums.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/q2/q8_rows.h"

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
// the rough inverse off by up to two units: quotients are the rounded ones, so codes are the
// rule's.
TEST(Q8Rows, ARefinedQuotientGivesTheRulesCode) {
  for (int a = 128; a < 256; ++a) {
    for (const int exponent : {0, -97, 115}) {
      const float amax = std::ldexp(static_cast<float>(a), exponent), scale = amax / 127.0f;
      if (scale < kLeastRefinableScale) continue;
      for (int off = -2; off <= 2; ++off) {
        const float rough = std::bit_cast<float>(std::bit_cast<int>(1.0f / scale) + off);
        const float inverse = std::fma(std::fma(-scale, rough, 1.0f), rough, rough);
        for (int shift = 0; shift < 12; ++shift) {
          for (int b = 128; b < 256; ++b) {
            const float x = std::ldexp(static_cast<float>(b), exponent - shift);
            if (x > amax) continue;
            const float near = x * inverse;
            const float ratio = std::fma(std::fma(-near, scale, x), inverse, near);
            if (shift < 9) {
              ASSERT_EQ(ratio, x / scale) << x << " of " << amax;
            } else {  // codes are 0, whatever the last place
              ASSERT_LT(ratio, 0.5f);
            }
          }
        }
      }
    }
  }
}

// Truncating sums of magnitudes below 128: what the device's additions give.
TEST(Q8Rows, HalvesAreRoundedAwayFromZero) {
  const auto cut = [](double sum, double place) {
    return static_cast<float>(std::trunc(sum / place) * place);
  };
  for (int code = 0; code < 128; ++code) {
    for (const float part : {0.0f, 0.25f, std::nextafter(0.5f, 0.0f), 0.5f, 0.75f}) {
      const float ratio = static_cast<float>(code) + part;
      if (ratio > 127.0f) continue;
      const double sum = static_cast<double>(ratio) + 0.5;
      int exponent;
      std::frexp(sum, &exponent);
      const float more = cut(sum, std::ldexp(1.0, exponent - 24));
      const float whole = cut(static_cast<double>(more) + kRounder, 1.0) - kRounder;
      ASSERT_EQ(whole, std::round(ratio)) << ratio;
      ASSERT_EQ(std::bit_cast<int>(whole + kRounder) - kRounderBits,
                static_cast<int>(std::round(ratio)));
      ASSERT_EQ(std::bit_cast<int>(-whole + kRounder) - kRounderBits,
                -static_cast<int>(std::round(ratio)));
    }
  }
}

}  // namespace
}  // namespace fulcrum::cuda

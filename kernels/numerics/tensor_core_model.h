// The integer model behind tensor_core.h, with its one fitted constant open, so that a test can
// show that the neighbouring models are wrong. Private to numerics; all others call TensorCoreStep.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace fulcrum::numerics::tensor_core_model {

// What the sm_90 card does. The fit is sharp: of the recorded outputs 24 bits get 25 % wrong, 26
// bits 15 %.
inline constexpr int kFractionBits = 25;

inline constexpr int kProducts = 16;  // of one step
// The least exponent of a normal number, BF16 and FP32 alike; subnormals have it too.
inline constexpr int kMinExponent = -126;
// No sum is taken finer than if its largest term had this exponent (a subnormal accumulator has a
// larger one, so this is for sums of nothing but the smallest products). Measured as sharply as the
// bits: of a million outputs -132 gets one wrong, -134 another one.
inline constexpr int kLeastExponent = -133;
inline constexpr uint32_t kNan = 0x7fffffffu;
inline constexpr uint32_t kInfinity = 0x7f800000u;

// A finite non-zero value is (-1)^negative * significand * 2^(exponent - fraction bits of its
// kind). Zero has significand 0.
struct Term {
  bool negative;
  uint32_t significand;
  int exponent;
};

// BF16: 7 fraction bits. A subnormal has no hidden bit and is not normalised.
inline Term FromBf16(uint16_t bits) {
  const int exponent = bits >> 7 & 0xff;
  const uint32_t fraction = bits & 0x7f;
  return {bits >> 15 != 0, exponent ? fraction | 0x80 : fraction,
          exponent ? exponent - 127 : kMinExponent};
}

// FP32: 23 fraction bits.
inline Term FromF32(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 23 & 0xff);
  const uint32_t fraction = bits & 0x7fffff;
  return {bits >> 31 != 0, exponent ? fraction | 0x800000 : fraction,
          exponent ? exponent - 127 : kMinExponent};
}

inline bool IsNonFiniteBf16(uint16_t bits) { return (bits & 0x7f80) == 0x7f80; }
inline bool IsNonFiniteF32(uint32_t bits) { return (bits & kInfinity) == kInfinity; }

// The result when any operand is NaN or infinite. IEEE's rules: every sum that meets a NaN, an
// infinity times zero or infinities of both signs is NaN, else the infinity.
inline uint32_t NonFiniteStep(const uint16_t* a, const uint16_t* b, uint32_t c) {
  bool positive = false, negative = false;
  const auto meet = [&](bool sign) { (sign ? negative : positive) = true; };
  if (IsNonFiniteF32(c)) {
    if (c & 0x7fffff) return kNan;
    meet(c >> 31);
  }
  for (int i = 0; i < kProducts; ++i) {
    if (!IsNonFiniteBf16(a[i]) && !IsNonFiniteBf16(b[i])) continue;
    const auto magnitude_a = a[i] & 0x7fff, magnitude_b = b[i] & 0x7fff;
    if (magnitude_a > 0x7f80 || magnitude_b > 0x7f80 || magnitude_a == 0 || magnitude_b == 0) {
      return kNan;
    }
    meet((a[i] ^ b[i]) >> 15);
  }
  if (positive && negative) return kNan;
  return negative ? kInfinity | 0x80000000u : kInfinity;
}

// FP32 bits of sum * 2^(exponent - fraction_bits), cut toward zero; a subnormal result is kept, an
// exact zero is +0, overflow is infinity.
inline uint32_t CutToF32(int64_t sum, int exponent, int fraction_bits) {
  if (sum == 0) return 0;
  const uint32_t sign = sum < 0 ? 0x80000000u : 0;
  const uint64_t magnitude = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  const int top = 63 - std::countl_zero(magnitude);  // position of the leading bit
  const int result_exponent = top + exponent - fraction_bits;
  if (result_exponent > 127) return sign | kInfinity;
  // Position, in `magnitude`, of the result's last bit: 23 below the leading bit, but not below
  // 2^-149.
  const int last = std::max(top, kMinExponent - exponent + fraction_bits) - 23;
  // Below every subnormal. The card's sign of this zero was not measured; no stored result depends
  // on it, since a zero accumulator is no term of the next step and the last fold ends in "+ 0.0f".
  if (last > top) return sign;
  const auto significand =
      static_cast<uint32_t>(last >= 0 ? magnitude >> last : magnitude << -last);
  if (result_exponent < kMinExponent) return sign | significand;
  return sign | static_cast<uint32_t>(result_exponent + 127) << 23 | (significand & 0x7fffff);
}

inline uint32_t Step(const uint16_t* a, const uint16_t* b, uint32_t c, int fraction_bits) {
  bool finite = !IsNonFiniteF32(c);
  for (int i = 0; i < kProducts; ++i) {
    finite = finite && !IsNonFiniteBf16(a[i]) && !IsNonFiniteBf16(b[i]);
  }
  if (!finite) return NonFiniteStep(a, b, c);

  // The exponent of a product is the sum of its factors': products are not normalised first.
  const Term addend = FromF32(c);
  int largest = addend.significand ? addend.exponent : kLeastExponent;
  Term products[kProducts];  // 14 fraction bits
  for (int i = 0; i < kProducts; ++i) {
    const Term x = FromBf16(a[i]), y = FromBf16(b[i]);
    products[i] = {x.negative != y.negative, x.significand * y.significand,
                   x.exponent + y.exponent};
    if (products[i].significand) largest = std::max(largest, products[i].exponent);
  }

  // Terms in units of 2^(largest - fraction_bits), each cut toward zero: a product is below 2^16
  // and is shifted up by 11, so the sum of 17 terms needs 33 bits and cannot overflow.
  int64_t sum = 0;
  const auto add = [&](const Term& term, int term_fraction_bits) {
    const int down = std::min(largest - term.exponent, 63);
    const uint64_t units =
        (static_cast<uint64_t>(term.significand) << (fraction_bits - term_fraction_bits)) >> down;
    sum += term.negative ? -static_cast<int64_t>(units) : static_cast<int64_t>(units);
  };
  if (addend.significand) add(addend, 23);
  for (const Term& product : products) {
    if (product.significand) add(product, 14);
  }
  return CutToF32(sum, largest, fraction_bits);
}

}  // namespace fulcrum::numerics::tensor_core_model

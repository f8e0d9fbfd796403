// IEEE half precision to and from F32. BF16, which every path needs inline, is in the header.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/formats/bf16.h"

#include <cmath>

namespace fulcrum {
namespace {

constexpr uint32_t kHalfBiasInFloat = 127 - 15;  // what the exponent fields differ by

}  // namespace

float F16ToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24, exact in F32
    return std::bit_cast<float>(sign |
                                std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
  }
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  return std::bit_cast<float>(sign | (exponent + kHalfBiasInFloat) << 23 | fraction << 13);
}

uint16_t F32ToF16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00);  // 2^16 and above
  if (magnitude < 0x38800000u) {  // below 2^-14: round to a multiple of 2^-24
    // Adding 1/2 puts the unit in the last place of the F32 sum at 2^-24, so the addition rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000u));
  }
  const uint32_t rounded = (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13;
  return static_cast<uint16_t>(sign | (rounded - (kHalfBiasInFloat << 10)));  // may carry to Inf
}

}  // namespace fulcrum

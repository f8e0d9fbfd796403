// BF16 and F16 conversions, one definition for host code. RNE; a NaN becomes 0x7fff.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace fulcrum {

inline float Bf16ToF32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// The stored form of an F32 result: every NaN is 0x7fffffff.
inline float CanonicalF32(float value) {
  return value != value ? std::bit_cast<float>(0x7fffffffu) : value;
}

float F16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);  // RNE, NaN becomes 0x7fff

}  // namespace fulcrum

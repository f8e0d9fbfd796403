// E4M3FN codes and the block-scaled encoder. Which bytes of a file are codes and which are scales
// is the reader's (weights/safetensors.h).
// SPDX-License-Identifier: Apache-2.0
#include "kernels/formats/fp8_block128.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/formats/bf16.h"

namespace fulcrum {
namespace {

constexpr uint8_t kNan = 0x7f;
constexpr uint8_t kLargest = 0x7e;
constexpr uint32_t kBiasInFloat = 127 - 7;  // what the exponent fields differ by

}  // namespace

float E4m3ToF32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t magnitude = code & 0x7f;
  if (magnitude == kNan) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {  // zero or subnormal: a multiple of 2^-9
    return std::bit_cast<float>(sign |
                                std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
  }
  return std::bit_cast<float>(sign | (magnitude + (kBiasInFloat << 3)) << 20);
}

uint16_t E4m3ToBf16(uint8_t code) { return F32ToBf16(E4m3ToF32(code)); }

uint8_t F32ToE4m3(float value) {
  if (std::isnan(value)) return kNan;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Largest)) {
    return static_cast<uint8_t>(sign | kLargest);
  }
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {  // round to a multiple of 2^-9
    // Adding 2^14 puts the unit in the last place of the F32 sum at 2^-9, so the addition rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign |
                                (std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  const uint32_t rounded = (magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
  return static_cast<uint8_t>(sign | (rounded - (kBiasInFloat << 3)));
}

void EncodeFp8Block128(std::span<const float> w, int64_t n, int64_t k, std::span<uint8_t> codes,
                       std::span<float> scales) {
  const int64_t scale_cols = (k + kFp8Block - 1) / kFp8Block;
  assert(static_cast<int64_t>(w.size()) == n * k && codes.size() == w.size());
  assert(static_cast<int64_t>(scales.size()) == (n + kFp8Block - 1) / kFp8Block * scale_cols);
  for (int64_t n0 = 0; n0 < n; n0 += kFp8Block) {
    for (int64_t k0 = 0; k0 < k; k0 += kFp8Block) {
      const int64_t n1 = std::min(n0 + kFp8Block, n);
      const int64_t k1 = std::min(k0 + kFp8Block, k);
      float amax = 0;
      for (int64_t row = n0; row < n1; ++row) {
        for (int64_t col = k0; col < k1; ++col) {
          amax = std::max(amax, std::fabs(w[row * k + col]));
        }
      }
      const float scale =
          amax == 0 ? 1 : std::max(amax / kE4m3Largest, std::numeric_limits<float>::min());
      scales[n0 / kFp8Block * scale_cols + k0 / kFp8Block] = scale;
      for (int64_t row = n0; row < n1; ++row) {
        for (int64_t col = k0; col < k1; ++col) {
          codes[row * k + col] = F32ToE4m3(w[row * k + col] / scale);
        }
      }
    }
  }
}

}  // namespace fulcrum

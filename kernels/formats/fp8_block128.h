// FP8 weights: E4M3FN bytes (bias 7, largest 448, subnormal step 2^-9, no infinity, NaN 0x7F and
// 0xFF), one FP32 scale per 128x128 block; the scale multiplies. Finite codes are exact in BF16.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace fulcrum {

inline constexpr int kFp8Block = 128;
inline constexpr float kE4m3Largest = 448;  // of the finite codes, 0x7E

inline bool IsE4m3Nan(uint8_t code) { return (code & 0x7f) == 0x7f; }
float E4m3ToF32(uint8_t code);
uint16_t E4m3ToBf16(uint8_t code);
// RNE, saturating at 448 for finite values and infinities; NaN gives 0x7F.
uint8_t F32ToE4m3(float value);

// Encodes W[n,k] (row-major F32) as codes [n,k] and scales [ceil(n/128), ceil(k/128)], as
// block-scaled checkpoints do: scale = amax / 448 in F32 (1 where amax is 0), and code =
// E4M3(w / scale). A scale is never subnormal, where it would keep only a few of its bits: it is
// raised to the least normal float, 2^-126, and weights below half a step of that, 2^-136, become
// zero. The largest code times the scale is a finite F32 for every finite amax.
void EncodeFp8Block128(std::span<const float> w, int64_t n, int64_t k, std::span<uint8_t> codes,
                       std::span<float> scales);

}  // namespace fulcrum

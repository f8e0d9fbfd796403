// Quantising activations by the rule of formats/q8_activation.h, with its bits: four neighbouring
// lanes do a chunk of 32 k of one row, eight values each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

// 1.5 * 2^23: added to a float of small magnitude it leaves its integer, rounded to nearest even,
// in the low bits.
inline constexpr float kRounder = 12582912.0f;
inline constexpr int kRounderBits = 0x4b400000;

// One lane's part of a chunk. Of a sum of products s = sum (code - 1) * q the arms start their
// integer sum at `start`: with the products of the codes added, its bits are the float kRounder + s.
struct Q8Part {
  uint32_t low, high;  // q of the lane's first four values and its last four
  int start;           // kRounderBits - sum of the chunk's 32 q
  float scale;
};

// The true quotient, rounded once, then to an integer with halves away from zero.
__device__ __noinline__ int QuantiseByDivision(float x, float scale) {
  const float ratio = roundf(__fdiv_rn(x, scale));
  return static_cast<int>(fminf(fmaxf(ratio, -127.0f), 127.0f));
}

// A product with the inverse is within 2^-15 of the rounded quotient, so it decides wherever it is
// further than that from a half. Elsewhere, and where the inverse overflows, one has to divide.
__device__ __forceinline__ uint32_t Quantise(float x, float scale, float inverse) {
  const float ratio = __fmul_rn(x, inverse);
  const float rounded = __fadd_rn(ratio, kRounder);
  const float off = __fsub_rn(ratio, __fsub_rn(rounded, kRounder));
  const bool sure = fabsf(off) < 0.5f - 0x1p-14f;  // false for NaN
  int q = __float_as_int(rounded);
  if (!sure) q = QuantiseByDivision(x, scale);
  return static_cast<uint32_t>(q) & 0xffu;
}

// `eight`: the lane's BF16 values, k ascending. For whole groups of four lanes.
__device__ __forceinline__ Q8Part QuantisePart(const uint4& eight) {
  uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
  // As integers magnitudes keep their order, and infinities and NaN are above all others.
  uint32_t largest = 0;
#pragma unroll
  for (const uint32_t pair : pairs) {
    largest = max(largest, max(pair << 16 & 0x7fff0000u, pair & 0x7fff0000u));
  }
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  const bool finite = largest < 0x7f800000u;
  Q8Part part;
  part.scale = finite ? __fdiv_rn(__uint_as_float(largest), 127.0f) : __int_as_float(0x7fc00000);
  const bool zero = !(part.scale > 0);  // NaN too
  const float inverse = zero ? 0.0f : __fdiv_rn(1.0f, part.scale);
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t pair = zero ? 0u : pairs[i / 2];
    const float x = __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
    words[i / 4] |= Quantise(x, part.scale, inverse) << (8 * (i % 4));
  }
  part.low = words[0];
  part.high = words[1];
  int sum = __dp4a(static_cast<int>(part.low), 0x01010101, 0);
  sum = __dp4a(static_cast<int>(part.high), 0x01010101, sum);
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  part.start = kRounderBits - sum;
  return part;
}

}  // namespace fulcrum::cuda

// Quantises activations with the bits of formats/q8_activation.h. Four neighbouring lanes quantise
// a chunk of 32 k of one row, eight values each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/arithmetic.cuh"
#include "kernels/cuda/q2/q8_rows.h"

namespace fulcrum::cuda {

// One lane's part of a chunk. An arm starts its integer sum at kRounderBits and adds code * q: then
// the bits are a float, and that float minus `offset` is sum (code - 1) * q, all of it exactly.
struct Q8Part {
  uint32_t low, high;  // q of the lane's first four values and its last four
  float offset;        // kRounder + the sum of the chunk's 32 q
  float scale;
};

// A word of codes (q2_layout.h) as four registers: of rows g (0 and 2) and of rows g + 8 (1 and 3).
__device__ __forceinline__ void SpreadAlike(uint32_t word, uint32_t (&codes)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = word >> (2 * i) & 0x03030303u;
}
// With fewer shifts, of rows g + 8 four times the codes: their sums start at kFineRounderBits.
__device__ __forceinline__ void Spread(uint32_t word, uint32_t (&codes)[4]) {
  codes[0] = word & 0x03030303u;
  codes[1] = word & 0x0c0c0c0cu;
  codes[2] = word >> 4 & 0x03030303u;
  codes[3] = word >> 4 & 0x0c0c0c0cu;
}
// `offset` for such a sum.
__device__ __forceinline__ float FineOffset(float offset) {
  return __fsub_rn(offset, kRounder - kFineRounder);
}

__device__ __forceinline__ float Bf16Of(const uint4& eight, int i) {
  const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
  const uint32_t pair = pairs[i / 2];
  return __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
}

// amax / 127, rounded to nearest.
inline __device__ __noinline__ float ScaleByDivision(float amax) { return __fdiv_rn(amax, 127.0f); }
__device__ __forceinline__ float ScaleOf(float amax) {
  if (amax < kLeastRefinable) return ScaleByDivision(amax);
  const float quotient = __fmul_rn(amax, kInverse127);
  return __fmaf_rn(__fmaf_rn(-127.0f, quotient, amax), kInverse127, quotient);
}

// True quotients, rounded once, then to integers with halves away from zero.
inline __device__ __noinline__ uint2 QuantiseByDivision(uint4 eight, float scale) {
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float ratio = roundf(__fdiv_rn(Bf16Of(eight, i), scale));
    const int q = static_cast<int>(fminf(fmaxf(ratio, -127.0f), 127.0f));
    words[i / 4] |= (static_cast<uint32_t>(q) & 0xffu) << (8 * (i % 4));
  }
  return make_uint2(words[0], words[1]);
}

// The same by an inverse, refined once, and a quotient, refined once: rounded as by division
// (q8_rows_test.cc tries them all), for scales from kLeastRefinableScale on. Halves are common,
// BF16 has few significands; so no short cut leaves them to a division.
__device__ __forceinline__ uint2 Quantise(const uint4& eight, float scale) {
  if (scale < kLeastRefinableScale) return QuantiseByDivision(eight, scale);
  const float rough = RcpApprox(scale);
  const float inverse = __fmaf_rn(__fmaf_rn(-scale, rough, 1.0f), rough, rough);
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float x = Bf16Of(eight, i), near = __fmul_rn(x, inverse);
    const float ratio = __fmaf_rn(__fmaf_rn(-near, scale, x), inverse, near);
    // Away from zero by a half, then to zero: truncating a sum crosses no integer.
    const float more = __fadd_rz(ratio, copysignf(0.5f, ratio));
    const float rounder = copysignf(kRounder, ratio);
    const float whole = __fsub_rn(__fadd_rz(more, rounder), rounder);
    words[i / 4] |= (__float_as_uint(__fadd_rn(whole, kRounder)) & 0xffu) << (8 * (i % 4));
  }
  return make_uint2(words[0], words[1]);
}

// `eight`: the lane's BF16 values, k ascending. For whole groups of four lanes.
__device__ __forceinline__ Q8Part QuantisePart(const uint4& eight) {
  const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
  // Compared as integers, magnitudes keep their order, with infinities and NaN above all others.
  uint32_t largest = 0;
#pragma unroll
  for (const uint32_t pair : pairs) {
    largest = max(largest, max(pair << 16 & 0x7fff0000u, pair & 0x7fff0000u));
  }
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  const bool finite = largest < 0x7f800000u;
  Q8Part part;
  part.scale = largest == 0 ? 0.0f
               : finite     ? ScaleOf(__uint_as_float(largest))
                            : __int_as_float(0x7fc00000);
  uint2 q = make_uint2(0, 0);
  if (part.scale > 0) q = Quantise(eight, part.scale);  // not where it is NaN
  part.low = q.x;
  part.high = q.y;
  int sum = __dp4a(static_cast<int>(part.low), 0x01010101, 0);
  sum = __dp4a(static_cast<int>(part.high), 0x01010101, sum);
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  part.offset = __int_as_float(kRounderBits + sum);
  return part;
}

}  // namespace fulcrum::cuda

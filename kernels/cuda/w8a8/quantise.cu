// Sixteen threads quantise the 128 K of a token, eight values each. A thread block quantises as
// many tokens as make their scales a whole number of sectors.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp8.h>

#include "kernels/cuda/layout/layout.h"
#include "kernels/cuda/w8a8/quantise.h"

namespace fulcrum::cuda {
namespace {

constexpr int kThreadsOfToken = 16, kTokens = kTokensTogether;
constexpr float kLargestE4m3 = 448;

__device__ float Value(uint32_t pair, int half) {
  return __uint_as_float(half ? pair & 0xffff0000u : pair << 16);
}

__global__ void __launch_bounds__(kThreadsOfToken* kTokens)
    Quantise(const uint16_t* rows, int64_t pitch, int m, int blocks, QuantisedRows to) {
  const int token = static_cast<int>(blockIdx.y) * kTokens + threadIdx.x / kThreadsOfToken;
  const int block = static_cast<int>(blockIdx.x), part = threadIdx.x % kThreadsOfToken;
  const bool real = token < m;
  uint32_t pairs[4] = {};
  if (real) {
    const uint4 v =
        __ldg(reinterpret_cast<const uint4*>(rows + token * pitch + block * kBlockK) + part);
    pairs[0] = v.x;
    pairs[1] = v.y;
    pairs[2] = v.z;
    pairs[3] = v.w;
  }
  // Compared as integers, magnitudes keep their order, with infinities and NaN above all others.
  uint32_t largest = 0;
  for (const uint32_t pair : pairs) {
    largest = max(largest, max(pair << 16 & 0x7fff0000u, pair & 0x7fff0000u));
  }
  for (int stride = kThreadsOfToken / 2; stride > 0; stride /= 2) {
    largest = max(largest, __shfl_xor_sync(~0u, largest, stride));
  }
  if (token >= to.scale_pitch) return;
  const bool finite = largest < 0x7f800000u;
  const float scale = finite ? __fdiv_rn(__uint_as_float(largest), kLargestE4m3) : 1.0f;
  // For a scale whose inverse overflows the codes saturate.
  const float inverse = scale > 0 ? fminf(__fdiv_rn(1.0f, scale), 0x1.fffffep127f) : 0.0f;
  uint32_t codes[2];
  for (int word = 0; word < 2; ++word) {
    codes[word] = 0;
    for (int i = 0; i < 2; ++i) {
      const uint32_t pair = pairs[word * 2 + i];
      const float2 scaled =
          make_float2(__fmul_rn(Value(pair, 0), inverse), __fmul_rn(Value(pair, 1), inverse));
      const uint32_t two = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
      codes[word] |= (finite ? two : 0x7f7fu) << (16 * i);
    }
  }
  reinterpret_cast<uint2*>(to.codes + (int64_t{token} * blocks + block) * kBlockK)[part] =
      make_uint2(codes[0], codes[1]);
  if (part == 0) to.scales[block * to.scale_pitch + token] = scale;
}

}  // namespace

cudaError_t QuantiseRows(const uint16_t* rows, int64_t pitch, int m, int blocks,
                         const QuantisedRows& to, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(RoundedTokens(m) / kTokens));
  Quantise<<<grid, kThreadsOfToken * kTokens, 0, stream>>>(rows, pitch, m, blocks, to);
  return cudaGetLastError();
}

}  // namespace fulcrum::cuda

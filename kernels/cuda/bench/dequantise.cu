// See dequantise.h.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/bench/dequantise.h"

namespace fulcrum::bench {
namespace {

__global__ void DequantiseKernel(const uint8_t* codes, const float* scales, int64_t n, int64_t k,
                                 uint16_t* out) {
  const int64_t columns = (k + 127) / 128;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n * k;
       i += int64_t{gridDim.x} * blockDim.x) {
    __nv_fp8_e4m3 code;
    code.__x = codes[i];
    const float value = static_cast<float>(code) * scales[i / k / 128 * columns + i % k / 128];
    out[i] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
}

}  // namespace

cudaError_t Dequantise(const std::byte* codes, const float* scales, int64_t n, int64_t k,
                       uint16_t* out, cudaStream_t stream) {
  DequantiseKernel<<<4096, 256, 0, stream>>>(reinterpret_cast<const uint8_t*>(codes), scales, n, k,
                                             out);
  return cudaGetLastError();
}

}  // namespace fulcrum::bench

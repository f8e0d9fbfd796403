// Activations of class w8a8: E4M3 with one F32 scale per token and 128 K, made on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace fulcrum::cuda {

// Tokens are quantised in groups of this many. Those of the last group beyond m get codes and
// scales of 0, as far as there is room for their scales.
inline constexpr int kTokensTogether = 16;
__host__ __device__ constexpr int RoundedTokens(int m) {
  return (m + kTokensTogether - 1) / kTokensTogether * kTokensTogether;
}

// The quantised rows of a launch in device memory.
struct QuantisedRows {
  std::byte* codes = nullptr;  // [tokens that get any][blocks * 128] E4M3, 16-byte aligned
  float* scales = nullptr;     // [blocks][scale_pitch]: the scales of one K block lie together
  int64_t scale_pitch = 0;     // at least m
};

// rows: BF16 [m][pitch], padded with zeros to whole blocks (launch.h). value = code * scale with
// scale = (largest magnitude of the 128) / 448 and the code rounded to nearest even; 128 zeros have
// scale 0. A value that is not finite makes its 128 codes NaN, and so the results of its own row.
cudaError_t QuantiseRows(const uint16_t* rows, int64_t pitch, int m, int blocks,
                         const QuantisedRows& to, cudaStream_t stream);

}  // namespace fulcrum::cuda

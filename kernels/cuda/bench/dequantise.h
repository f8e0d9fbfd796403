// An fp8 weight as plain BF16, for peers that have no fp8.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace fulcrum::bench {

// codes: E4M3 [n][k], scales: [n / 128][k / 128] (rounded up), out: BF16 [n][k]. Device memory.
cudaError_t Dequantise(const std::byte* codes, const float* scales, int64_t n, int64_t k,
                       uint16_t* out, cudaStream_t stream);

}  // namespace fulcrum::bench

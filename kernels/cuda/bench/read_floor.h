// What reading a weight's bytes once costs on a CUDA device and nothing else: the floor an arm of
// one weight pass is measured against.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fulcrum::bench {

// One way to read; which is fastest depends on the size.
struct ReadKernel {
  std::string_view name;
  bool needs_sm90 = false;
  // Reads bytes (a multiple of 16) once. sink: 4 bytes of device memory, never written in practice.
  cudaError_t (*launch)(const std::byte* data, int64_t bytes, int sm_count, uint32_t* sink,
                        cudaStream_t stream) = nullptr;
};
std::span<const ReadKernel> ReadKernels();

}  // namespace fulcrum::bench

// The checksum of device memory that the slow scrub compares. Called by the host; scrubber.h waits
// for the sum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace fulcrum::cuda {

// Enqueues *sum = checksum of `bytes` bytes at `data` (8-byte aligned). Both are device memory. Any
// single changed 64-bit word changes the sum, and the sum is the same for every grid.
cudaError_t EnqueueChecksum(const std::byte* data, int64_t bytes, unsigned long long* sum,
                            cudaStream_t stream);

}  // namespace fulcrum::cuda

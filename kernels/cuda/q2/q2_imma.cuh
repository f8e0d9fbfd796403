// Operands of one integer tensor-core step: a chunk of a tile of 16 rows by 8 columns. Thread 4 g +
// t has rows g and g + 8 of columns 2 t and 2 t + 1.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/q2/q8_chunk.cuh"
#include "kernels/cuda/q2/q8_rows.h"

namespace fulcrum::cuda {

// Addresses at which a thread reads quantised activations, in the layout of QuantiseForTensorCores,
// in shared or in device memory. `at`: bytes beyond the place that the object was made for.
template <bool kShared>
struct Q8Fragments {
  uint32_t words, constants;
  const std::byte* device;  // both in device memory: words, and constants from there

  __device__ __forceinline__ Q8Fragments(uint32_t shared, const std::byte* device_x, int lane)
      : words(kShared ? shared + lane * 8 : lane * 8),
        constants((kShared ? shared : 0) + kQ8ConstantsAt + lane % 4 * 16),
        device(device_x) {}

  __device__ __forceinline__ void Advance(int bytes) {
    words += bytes;
    constants += bytes;
  }
  // The thread's words of a chunk.
  __device__ __forceinline__ uint2 Words(int at) const {
    if constexpr (kShared) {
      return SharedLoad64(words + at);
    } else {
      return *reinterpret_cast<const uint2*>(device + (words + at));
    }
  }
  // Offsets of columns 2 t and 2 t + 1, then their scales: floats.
  __device__ __forceinline__ uint4 Constants(int at) const {
    if constexpr (kShared) {
      return SharedLoad(constants + at);
    } else {
      return *reinterpret_cast<const uint4*>(device + (constants + at));
    }
  }
};

}  // namespace fulcrum::cuda

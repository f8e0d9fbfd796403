// Holding values in registers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace fulcrum::cuda {

// The compiler must have `value` in a register now, and must not make it anew where it is used. For
// addresses that are worked out while something else is waited for.
__device__ __forceinline__ void ForceInRegister(uint32_t& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void ForceInRegister(int& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void ForceInRegister(int64_t& value) { asm volatile("" : "+l"(value)); }
__device__ __forceinline__ void ForceInRegister(std::byte*& value) {
  asm volatile("" : "+l"(value));
}

}  // namespace fulcrum::cuda

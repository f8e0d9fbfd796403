// Keeps a value in its register.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace fulcrum::cuda {

// Computes `value` here and keeps it: the compiler may not compute it again where it is used. For
// addresses that are computed while a kernel waits for memory.
__device__ __forceinline__ void ForceInRegister(uint32_t& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void ForceInRegister(int& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void ForceInRegister(int64_t& value) { asm volatile("" : "+l"(value)); }
__device__ __forceinline__ void ForceInRegister(std::byte*& value) {
  asm volatile("" : "+l"(value));
}

}  // namespace fulcrum::cuda

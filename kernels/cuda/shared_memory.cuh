// Shared memory by its 32-bit addresses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ uint4 SharedLoad(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from));
  return v;
}

}  // namespace fulcrum::cuda

// Asynchronous copies of 16 bytes from device memory to shared memory. Before sm_80 there are none:
// the copy is complete when the call returns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

__device__ __forceinline__ void AsyncCopy16(uint32_t to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
  const uint4 v = __ldg(static_cast<const uint4*>(from));
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
#endif
}
// Closes this thread's group of copies. A group may be empty.
__device__ __forceinline__ void AsyncCommit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most kPending of this thread's groups are incomplete.
template <int kPending>
__device__ __forceinline__ void AsyncWait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace fulcrum::cuda

// The instructions of sm_90a that CUDA C++ has no words for: barriers in shared memory, bulk and
// tensor copies, warpgroup products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/shared_memory.cuh"

namespace fulcrum::cuda {

__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void BarriersReady() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierExpect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE%=;\nbra WAIT%=;\nDONE%=:\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}
// Whether that wait would be over. Lanes with barriers of their own ask: in BarrierWait they would
// wait for each other.
__device__ __forceinline__ bool BarrierPassed(uint32_t barrier, uint32_t phase) {
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(barrier), "r"(phase)
      : "memory");
  return passed != 0;
}
__device__ __forceinline__ uint64_t ReadOnce() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void BulkCopy(uint32_t to, const void* from, int bytes, uint32_t barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// All slices (tensor_map.h, DescribeSlices) of a box from slice `first` on.
__device__ __forceinline__ void TensorCopySlices(uint32_t to, const CUtensorMap* map, int first,
                                                 uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(0), "r"(first), "r"(barrier)
      : "memory");
}
// Waits until `threads` threads, whole warps, have come here with the same id (1 to 15).
__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// sums += A (four registers, 64 x 16) times B (shared memory, 16 x 8, 128-byte swizzle).
// descriptor: the low half, B's address / 16 and a leading offset of 1; rows of 8 are 1024 bytes
// apart. `more`: add to sums rather than start from zero.
inline constexpr uint32_t kDescriptorHigh = (1024 >> 4) | (1u << 30);
__device__ __forceinline__ void Wgmma(float (&s)[4], const uint32_t* a, uint32_t descriptor,
                                      bool more) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 d;\nmov.b64 d, {%8, %10};\nsetp.ne.b32 p, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "d, "
      "p, 1, 1, 0;\n}"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(descriptor), "r"(int{more}),
        "r"(kDescriptorHigh));
}

}  // namespace fulcrum::cuda

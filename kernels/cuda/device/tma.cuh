// Bulk and tensor copies from device memory to shared memory (sm_90 and later), and their cache
// policies. Each copy completes its bytes at an mbarrier.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fulcrum::cuda {

__device__ __forceinline__ uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// For data that other thread blocks read too.
__device__ __forceinline__ uint64_t EvictNormalPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
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
// Copies one box of slices (tensor_map.h, DescribeSlices) from slice `first` on.
__device__ __forceinline__ void TensorCopySlices(uint32_t to, const CUtensorMap* map, int first,
                                                 uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(0), "r"(first), "r"(barrier)
      : "memory");
}

// Copies one box of a tensor map; its first element is column `x` of row `y`.
__device__ __forceinline__ void TensorCopyBox(uint32_t to, const CUtensorMap* map, int x, int y,
                                              uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// Copies the box to the same place in every thread block of the mask and completes its bytes at the
// mbarrier at the same place there.
__device__ __forceinline__ void TensorCopyBoxMulticast(uint32_t to, const CUtensorMap* map, int x,
                                                       int y, uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
      : "memory");
}

// Orders this thread's stores to shared memory before later accesses by copies and tensor cores,
// which use another path (the async proxy).
__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace fulcrum::cuda

// Copies of the copy unit (sm_90 and later) from device memory to shared memory, plain and by a
// tensor map, with the cache policies they take. Each tells an mbarrier of its bytes.
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

// For bulk copies of what other thread blocks read too.
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
// All slices (tensor_map.h, DescribeSlices) of a box from slice `first` on.
__device__ __forceinline__ void TensorCopySlices(uint32_t to, const CUtensorMap* map, int first,
                                                 uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(0), "r"(first), "r"(barrier)
      : "memory");
}

// One box of a tensor map: column `x` of row `y` is its first element.
__device__ __forceinline__ void TensorCopyBox(uint32_t to, const CUtensorMap* map, int x, int y,
                                              uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// The same to every thread block of the mask, at the same place there, its barrier told there.
__device__ __forceinline__ void TensorCopyBoxMulticast(uint32_t to, const CUtensorMap* map, int x,
                                                       int y, uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
      : "memory");
}

// Orders this thread's stores to shared memory before what copies and tensor cores, which reach it
// by another path, do there afterwards.
__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace fulcrum::cuda

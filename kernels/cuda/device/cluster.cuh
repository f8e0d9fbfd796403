// Thread block clusters (sm_90 and later): ranks, barriers of the cluster, and stores into the
// shared memory of another thread block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Barrier of all threads of the cluster. Stores to shared memory before it are visible to all
// threads after it.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// The two halves of the barrier, so that a thread can work in between. The arrival is relaxed: of
// stores before it only initialised mbarriers are visible (MbarrierInitFence). It saves the fence
// of ClusterSync.
__device__ __forceinline__ void ClusterArriveRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The address, in thread block `rank` of the cluster, of the same place in its shared memory.
__device__ __forceinline__ uint32_t ClusterMapShared(uint32_t place, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank));
  return there;
}
// Stores a word at such an address and completes four bytes of the mbarrier there. Threads that
// wait for the mbarrier see the word.
__device__ __forceinline__ void StoreAsync32(uint32_t there, uint32_t word,
                                             uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(there),
      "r"(word), "r"(barrier_there)
      : "memory");
}
// The same for two words, eight bytes.
__device__ __forceinline__ void StoreAsync64(uint32_t there, const uint2& words,
                                             uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];" ::
          "r"(there),
      "r"(words.x), "r"(words.y), "r"(barrier_there)
      : "memory");
}
// The same for four words, 16 bytes.
__device__ __forceinline__ void StoreAsync128(uint32_t there, const float4& words,
                                              uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(there),
      "f"(words.x), "f"(words.y), "f"(words.z), "f"(words.w), "r"(barrier_there)
      : "memory");
}
// Arrives at the mbarrier that is at this place in thread block `rank` of the cluster. For threads
// that have only read: an arrival with cluster scope would be a fence of the whole device.
__device__ __forceinline__ void MbarrierArriveRemote(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

}  // namespace fulcrum::cuda

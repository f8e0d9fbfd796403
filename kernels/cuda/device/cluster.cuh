// Thread block clusters (sm_90 and later): who is where, meeting, and stores into the shared memory
// of another thread block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of the cluster: what each did to shared memory before is seen by all after.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// The two halves of it, for who need not wait, and of memory for barriers only that were made ready
// (MbarrierInitFence): without the fence that else goes before it.
__device__ __forceinline__ void ClusterArriveRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Where a place in shared memory is in thread block `rank` of the cluster.
__device__ __forceinline__ uint32_t ClusterMapShared(uint32_t place, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank));
  return there;
}
// Stores a word there and tells the barrier there of its four bytes: who waits for it sees the
// word.
__device__ __forceinline__ void StoreAsync32(uint32_t there, uint32_t word,
                                             uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(there),
      "r"(word), "r"(barrier_there)
      : "memory");
}
// Two of them; eight bytes.
__device__ __forceinline__ void StoreAsync64(uint32_t there, const uint2& words,
                                             uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];" ::
          "r"(there),
      "r"(words.x), "r"(words.y), "r"(barrier_there)
      : "memory");
}
// Four of them; 16 bytes.
__device__ __forceinline__ void StoreAsync128(uint32_t there, const float4& words,
                                              uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(there),
      "f"(words.x), "f"(words.y), "f"(words.z), "f"(words.w), "r"(barrier_there)
      : "memory");
}
// Arrives at the barrier that lies there in thread block `rank` of the cluster. For who has only
// read: with a scope of the cluster this would be a fence of the whole device.
__device__ __forceinline__ void MbarrierArriveRemote(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

}  // namespace fulcrum::cuda

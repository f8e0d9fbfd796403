// More instructions of sm_90a, for kernels that are bound by the tensor cores: thread block
// clusters, tensor copies to a cluster, and warpgroup products of 64 or 128 columns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/hopper.cuh"

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
// (BarriersReady): without the fence that else goes before it.
__device__ __forceinline__ void ClusterArriveAll() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWaitAll() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Where a place in shared memory is in thread block `rank` of the cluster.
__device__ __forceinline__ uint32_t ClusterAddress(uint32_t place, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank));
  return there;
}
// Stores a word there and tells the barrier there of its four bytes: who waits for it sees the
// word.
__device__ __forceinline__ void SendWord(uint32_t there, uint32_t word, uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(there),
      "r"(word), "r"(barrier_there)
      : "memory");
}
// Two of them; eight bytes.
__device__ __forceinline__ void SendPair(uint32_t there, const uint2& words,
                                         uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];" ::
          "r"(there),
      "r"(words.x), "r"(words.y), "r"(barrier_there)
      : "memory");
}
// Four of them; 16 bytes.
__device__ __forceinline__ void SendQuad(uint32_t there, const float4& words,
                                         uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(there),
      "f"(words.x), "f"(words.y), "f"(words.z), "f"(words.w), "r"(barrier_there)
      : "memory");
}
// Arrives at the barrier that lies there in thread block `rank` of the cluster. For who has only
// read: with a scope of the cluster this would be a fence of the whole device.
__device__ __forceinline__ void ClusterArrive(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// For bulk copies of what other thread blocks read too.
__device__ __forceinline__ uint64_t ReadOften() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Of three warpgroups one that only copies gives registers to the two that multiply.
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
}
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
}

// One box of a tensor map: column `x` of row `y` is its first element.
__device__ __forceinline__ void BoxCopy(uint32_t to, const CUtensorMap* map, int x, int y,
                                        uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// The same to every thread block of the mask, at the same place there, its barrier told there.
__device__ __forceinline__ void BoxCopyToAll(uint32_t to, const CUtensorMap* map, int x, int y,
                                             uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
      : "memory");
}

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending of the committed are not finished.
template <int kPending = 0>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Registers of an asynchronous instruction must not move while it runs: empty statements pin them.
template <int kCount>
__device__ __forceinline__ void Pin(uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
template <int kTiles>
__device__ __forceinline__ void Pin(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[t][e])::"memory");
  }
}

// An 8 x 8 matrix of 16-bit elements, two of a row in each thread, with rows and columns exchanged.
__device__ __forceinline__ uint32_t Transposed(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// The low half of the descriptor of rows of 128 bytes in shared memory, 128-byte swizzle.
__device__ __forceinline__ uint32_t RowsDescriptor(uint32_t address) {
  return ((address & 0x3ffff) >> 4) | (1u << 16);
}

#define FULCRUM_SUM(t) "+f"(s[t][0]), "+f"(s[t][1]), "+f"(s[t][2]), "+f"(s[t][3])
#define FULCRUM_SUM4(t) \
  FULCRUM_SUM(t), FULCRUM_SUM((t) + 1), FULCRUM_SUM((t) + 2), FULCRUM_SUM((t) + 3)
#define FULCRUM_SUM8(t) FULCRUM_SUM4(t), FULCRUM_SUM4((t) + 4)
#define FULCRUM_REGS32                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FULCRUM_REGS64                                                                           \
  FULCRUM_REGS32                                                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// As hopper.cuh's Wgmma, wider: BF16, A in registers, 8 kTiles columns of B in shared memory.
template <int kTiles>
__device__ __forceinline__ void WgmmaWide(float (&s)[kTiles][4], const uint32_t* a,
                                          uint32_t descriptor, bool more) {
  if constexpr (kTiles == 8) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d;\nmov.b64 d, {%36, %38};\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FULCRUM_REGS32
        "}, {%32, %33, %34, %35}, d, p, 1, 1, 0;\n}"
        : FULCRUM_SUM8(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(descriptor), "r"(int{more}),
          "r"(kDescriptorHigh));
  } else {
    static_assert(kTiles == 16);
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d;\nmov.b64 d, {%68, %70};\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FULCRUM_REGS64
        "}, {%64, %65, %66, %67}, d, p, 1, 1, 0;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM8(8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(descriptor), "r"(int{more}),
          "r"(kDescriptorHigh));
  }
}

// sums += A (64 x 32 E4M3) times B (32 x 8 kTiles E4M3), both in shared memory, 128-byte swizzle.
template <int kTiles>
__device__ __forceinline__ void WgmmaE4m3(float (&s)[kTiles][4], uint32_t a, uint32_t b,
                                          bool more) {
  if constexpr (kTiles == 8) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d, e;\nmov.b64 d, {%32, %35};\nmov.b64 e, {%33, %35};\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" FULCRUM_REGS32
        "}, d, e, p, 1, 1;\n}"
        : FULCRUM_SUM8(0)
        : "r"(a), "r"(b), "r"(int{more}), "r"(kDescriptorHigh));
  } else if constexpr (kTiles == 10) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d, e;\nmov.b64 d, {%40, %43};\nmov.b64 e, {%41, %43};\n"
        "setp.ne.b32 p, %42, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n80k32.f32.e4m3.e4m3 {" FULCRUM_REGS32
        ", %32, %33, %34, %35, %36, %37, %38, %39}, d, e, p, 1, 1;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM(8), FULCRUM_SUM(9)
        : "r"(a), "r"(b), "r"(int{more}), "r"(kDescriptorHigh));
  } else if constexpr (kTiles == 12) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d, e;\nmov.b64 d, {%48, %51};\nmov.b64 e, {%49, %51};\n"
        "setp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {" FULCRUM_REGS32
        ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, d, e, "
        "p, 1, 1;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM4(8)
        : "r"(a), "r"(b), "r"(int{more}), "r"(kDescriptorHigh));
  } else if constexpr (kTiles == 16) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d, e;\nmov.b64 d, {%64, %67};\nmov.b64 e, {%65, %67};\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" FULCRUM_REGS64
        "}, d, e, p, 1, 1;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM8(8)
        : "r"(a), "r"(b), "r"(int{more}), "r"(kDescriptorHigh));
  } else {
    static_assert(kTiles == 17);
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d, e;\nmov.b64 d, {%68, %71};\nmov.b64 e, {%69, %71};\n"
        "setp.ne.b32 p, %70, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 {" FULCRUM_REGS64
        ", %64, %65, %66, %67}, d, e, p, 1, 1;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM8(8), FULCRUM_SUM(16)
        : "r"(a), "r"(b), "r"(int{more}), "r"(kDescriptorHigh));
  }
}

#undef FULCRUM_SUM
#undef FULCRUM_SUM4
#undef FULCRUM_SUM8
#undef FULCRUM_REGS32
#undef FULCRUM_REGS64

}  // namespace fulcrum::cuda

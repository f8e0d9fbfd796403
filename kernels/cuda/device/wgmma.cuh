// Warpgroup matrix products of sm_90a: 64 rows by the columns of a tile, with one or both operands
// in shared memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

// For kernels of three warpgroups, of which one copies and two multiply: the first keeps 40
// registers a thread, the others get 232.
__device__ __forceinline__ void WarpgroupRegDealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
}
__device__ __forceinline__ void WarpgroupRegAlloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
}

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are unfinished.
template <int kPending = 0>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Registers of an asynchronous product must not move while it runs. These empty statements order
// their other uses.
template <int kCount>
__device__ __forceinline__ void WarpgroupFenceOperand(uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void WarpgroupFenceOperand(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int kTiles>
__device__ __forceinline__ void WarpgroupFenceOperand(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) WarpgroupFenceOperand(sums[t]);
}

// The low half of the descriptor of rows of 128 bytes in shared memory, 128-byte swizzle.
__device__ __forceinline__ uint32_t WgmmaDescriptor(uint32_t address) {
  return ((address & 0x3ffff) >> 4) | (1u << 16);
}

// sums += A (four registers, 64 x 16) times B (shared memory, 16 x 8, 128-byte swizzle).
// descriptor: the low half, B's address / 16 and a leading offset of 1; rows of 8 are 1024 bytes
// apart. `more`: add to sums rather than start from zero.
inline constexpr uint32_t kWgmmaDescriptorHigh = (1024 >> 4) | (1u << 30);
__device__ __forceinline__ void Wgmma(float (&s)[4], const uint32_t* a, uint32_t descriptor,
                                      bool more) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 d;\nmov.b64 d, {%8, %10};\nsetp.ne.b32 p, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "d, "
      "p, 1, 1, 0;\n}"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(descriptor), "r"(int{more}),
        "r"(kWgmmaDescriptorHigh));
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

// The same for 8 kTiles columns.
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
          "r"(kWgmmaDescriptorHigh));
  } else {
    static_assert(kTiles == 16);
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d;\nmov.b64 d, {%68, %70};\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FULCRUM_REGS64
        "}, {%64, %65, %66, %67}, d, p, 1, 1, 0;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM8(8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(descriptor), "r"(int{more}),
          "r"(kWgmmaDescriptorHigh));
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
        : "r"(a), "r"(b), "r"(int{more}), "r"(kWgmmaDescriptorHigh));
  } else if constexpr (kTiles == 10) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d, e;\nmov.b64 d, {%40, %43};\nmov.b64 e, {%41, %43};\n"
        "setp.ne.b32 p, %42, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n80k32.f32.e4m3.e4m3 {" FULCRUM_REGS32
        ", %32, %33, %34, %35, %36, %37, %38, %39}, d, e, p, 1, 1;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM(8), FULCRUM_SUM(9)
        : "r"(a), "r"(b), "r"(int{more}), "r"(kWgmmaDescriptorHigh));
  } else if constexpr (kTiles == 12) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d, e;\nmov.b64 d, {%48, %51};\nmov.b64 e, {%49, %51};\n"
        "setp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {" FULCRUM_REGS32
        ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, d, e, "
        "p, 1, 1;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM4(8)
        : "r"(a), "r"(b), "r"(int{more}), "r"(kWgmmaDescriptorHigh));
  } else if constexpr (kTiles == 16) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d, e;\nmov.b64 d, {%64, %67};\nmov.b64 e, {%65, %67};\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" FULCRUM_REGS64
        "}, d, e, p, 1, 1;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM8(8)
        : "r"(a), "r"(b), "r"(int{more}), "r"(kWgmmaDescriptorHigh));
  } else {
    static_assert(kTiles == 17);
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 d, e;\nmov.b64 d, {%68, %71};\nmov.b64 e, {%69, %71};\n"
        "setp.ne.b32 p, %70, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 {" FULCRUM_REGS64
        ", %64, %65, %66, %67}, d, e, p, 1, 1;\n}"
        : FULCRUM_SUM8(0), FULCRUM_SUM8(8), FULCRUM_SUM(16)
        : "r"(a), "r"(b), "r"(int{more}), "r"(kWgmmaDescriptorHigh));
  }
}

#undef FULCRUM_SUM
#undef FULCRUM_SUM4
#undef FULCRUM_SUM8
#undef FULCRUM_REGS32
#undef FULCRUM_REGS64

}  // namespace fulcrum::cuda

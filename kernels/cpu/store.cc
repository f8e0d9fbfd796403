// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set; vec-inl.h has the code.
#include "kernels/cpu/store.h"

#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/store.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {
void Store(const Job& job, int64_t block, int first_tile, int end_tile, const float* total) {
  StoreRows(job, block, first_tile, end_tile, total);
}
}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fulcrum::cpu {
HWY_EXPORT(Store);
void StoreBlock(const Job& job, int64_t block, int first_tile, int end_tile, const float* total) {
  HWY_DYNAMIC_DISPATCH(Store)(job, block, first_tile, end_tile, total);
}
}  // namespace fulcrum::cpu
#endif  // HWY_ONCE

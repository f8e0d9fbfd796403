// Per instruction set: what the ways through class exact share, an item's rows and the end of a
// segment.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_EXACT_SEGMENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_EXACT_SEGMENT_INL_H_
#undef FULCRUM_CPU_EXACT_SEGMENT_INL_H_
#else
#define FULCRUM_CPU_EXACT_SEGMENT_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

// Tiles [first_tile, end_tile) of one block of 128 rows, within one K segment.
struct ExactRows {
  int64_t block = 0;
  int first_tile = 0, end_tile = 0;
  int64_t segment = 0;
};

// (a0 + a2) + (a1 + a3), then added to the segments before.
HWY_INLINE void EndExactSegment(VF a0, VF a1, VF a2, VF a3, bool first, float* total) {
  const DF d;
  const VF sum = hn::Add(hn::Add(a0, a2), hn::Add(a1, a3));
  hn::StoreU(first ? sum : hn::Add(hn::LoadU(d, total), sum), d, total);
}

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_EXACT_SEGMENT_INL_H_

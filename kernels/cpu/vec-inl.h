// Per instruction set: the F32 vector, the one fused multiply-add everything is built from, and the
// end of every result.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_VEC_INL_H_
#undef FULCRUM_CPU_VEC_INL_H_
#else
#define FULCRUM_CPU_VEC_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/launch.h"
#include "kernels/formats/bf16.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::ScalableTag<uint32_t>;
using VF = hn::Vec<DF>;

inline constexpr int kLanes = static_cast<int>(HWY_LANES(float));
inline constexpr int kTileVecs = kTileRows / kLanes;  // vectors of one tile row

// Enough registers for wide accumulator tiles beside decoding tables?
inline constexpr bool kManyRegisters = HWY_CAP_GE512;

// One rounding, on every instruction set.
HWY_INLINE VF Fma(VF a, VF b, VF c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float x[kLanes], y[kLanes], z[kLanes];
  const DF d;
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (int i = 0; i < kLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(d, z);
#endif
}

// Writes rows [first_tile, end_tile) of a block: adds +0, makes NaN canonical, rounds to the output
// type, and leaves everything outside [0, N) untouched. total: [column][128 rows].
HWY_INLINE void StoreRows(const Job& job, int64_t block, int first_tile, int end_tile,
                          const float* HWY_RESTRICT total) {
  const DF d;
  const DU du;
  const hn::Rebind<uint16_t, DU> dh;
  const int64_t first = block * kBlockRows + first_tile * kTileRows;
  const int64_t count =
      std::min<int64_t>(job.weight->spec().n, block * kBlockRows + end_tile * kTileRows) - first;
  const auto finish = [&](const float* from) {
    const VF v = hn::Add(hn::LoadU(d, from), hn::Zero(d));
    return hn::IfThenElse(hn::Eq(v, v), v, hn::BitCast(d, hn::Set(du, 0x7fffffffu)));
  };
  const auto round = [&](VF v) {
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto up = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
    // A canonical NaN would overflow into the sign: it is cut instead, to 0x7fff.
    const auto nan = hn::Eq(bits, hn::Set(du, 0x7fffffffu));
    return hn::ShiftRight<16>(hn::IfThenElse(nan, bits, up));
  };
  for (int column = 0; column < job.args.m; ++column) {
    const float* const from = total + column * kBlockRows + first_tile * kTileRows;
    if (job.args.output_type == DType::kF32) {
      float* const out =
          static_cast<float*>(job.args.output) + column * job.args.output_pitch + first;
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) hn::StoreU(finish(from + i), d, out + i);
      for (; i < count; ++i) out[i] = CanonicalF32(from[i] + 0.0f);
    } else {
      uint16_t* const out =
          static_cast<uint16_t*>(job.args.output) + column * job.args.output_pitch + first;
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) {
        hn::StoreU(hn::TruncateTo(dh, round(finish(from + i))), dh, out + i);
      }
      for (; i < count; ++i) out[i] = F32ToBf16(from[i] + 0.0f);
    }
  }
}

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_VEC_INL_H_

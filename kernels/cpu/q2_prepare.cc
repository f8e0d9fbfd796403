// Activations of the q2_0 arm: quantised by the rule of formats/q8_activation.h, with its bits, and
// laid out as q2_kernel.h says. Vectorised because at M = 1 the plain quantiser takes as long as
// the
// weights. Also the choice of kernel.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/q2_prepare.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/q2_kernel.h"
#include "kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

inline constexpr int kChunkK = numerics::kQ2ChunkK;

// Quantises one chunk: q as int32, returns its scale.
HWY_INLINE float QuantizeChunk(const float* HWY_RESTRICT x, int32_t* HWY_RESTRICT q) {
  const DF d;
  const DU du;
  const hn::RebindToSigned<DU> di;
  // Magnitudes compared as integers: their order is the same, and NaN and infinity are on top.
  auto top = hn::Zero(du);
  for (int i = 0; i < kChunkK; i += kLanes) {
    top = hn::Max(top, hn::BitCast(du, hn::Abs(hn::Load(d, x + i))));
  }
  const uint32_t amax_bits = hn::GetLane(hn::MaxOfLanes(du, top));
  const bool finite = amax_bits < 0x7f800000u;
  const float scale = finite ? std::bit_cast<float>(amax_bits) / 127.0f : std::nanf("");
  if (!finite || scale == 0) {
    for (int i = 0; i < kChunkK; i += kLanes) hn::Store(hn::Zero(di), di, q + i);
    return scale;
  }
  const VF by = hn::Set(d, scale), half = hn::Set(d, 0.5f), one = hn::Set(d, 1.0f);
  const VF limit = hn::Set(d, 127.0f);
  for (int i = 0; i < kChunkK; i += kLanes) {
    const VF ratio = hn::Div(hn::Load(d, x + i), by);
    const VF magnitude = hn::Abs(ratio);
    // Halves away from zero, from the exact fraction: adding 0.5 first would round it.
    const VF whole = hn::Trunc(magnitude);
    const VF up = hn::IfThenElseZero(hn::Ge(hn::Sub(magnitude, whole), half), one);
    const VF rounded = hn::CopySign(hn::Min(hn::Add(whole, up), limit), ratio);
    hn::Store(hn::ConvertTo(di, rounded), di, q + i);
  }
  return scale;
}

void Prepare(const Job& job, int64_t item) {
  const int64_t k = job.weight->spec().k;
  const int64_t vectors = ChunkLayout(job.weight->spec()).vectors();
  const auto column = static_cast<int>(item % job.args.m);
  const int64_t first = item / job.args.m * kQ2VectorsPerItem;
  const Q2Column out = Q2ColumnOf(job, column);
  const uint16_t* const x =
      static_cast<const uint16_t*>(job.args.activations) + column * job.args.activation_pitch;
  auto* const words = reinterpret_cast<uint32_t*>(const_cast<int8_t*>(out.codes));
  auto* const scales = const_cast<float*>(out.scales);
  auto* const minus_sums = const_cast<int32_t*>(out.minus_sums);
  const int64_t end = std::min(first + kQ2VectorsPerItem, vectors) * ChunkLayout::kLanes;
  for (int64_t chunk = first * ChunkLayout::kLanes; chunk < end; ++chunk) {
    HWY_ALIGN float values[kChunkK];
    HWY_ALIGN int32_t q[kChunkK];
    if (chunk * kChunkK < k) {
      for (int i = 0; i < kChunkK; ++i) values[i] = Bf16ToF32(x[chunk * kChunkK + i]);
    } else {
      std::fill(values, values + kChunkK, 0.0f);
    }
    scales[chunk] = QuantizeChunk(values, q);
    int32_t sum = 0;
    for (int i = 0; i < kChunkK; ++i) sum += q[i];
    minus_sums[chunk] = -sum;
    uint32_t* const to =
        words + chunk / ChunkLayout::kLanes * 8 * ChunkLayout::kLanes + chunk % ChunkLayout::kLanes;
    for (int word = 0; word < 8; ++word) {
      const int32_t* const from = q + word / 4 * 16 + word % 4;
      const auto byte = [from](int b) { return static_cast<uint32_t>(from[4 * b]) & 0xffu; };
      to[word * ChunkLayout::kLanes] = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
    }
  }
}

// The kernel of this instruction set. Asked through the dispatch table, which remembers the answer:
// asking the CPU itself costs tens of microseconds in a virtual machine.
Q2Kernel Choose() {
#if HWY_TARGET == HWY_AVX3_DL
  return Q2KernelAvx512();
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return Q2KernelAvx2();
#else
  return Q2KernelPortable();
#endif
}

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fulcrum::cpu {
HWY_EXPORT(Prepare);
HWY_EXPORT(Choose);

int64_t Q2PrepareItems(const Job& job) {
  const int64_t vectors = ChunkLayout(job.weight->spec()).vectors();
  return job.args.m * ((vectors + kQ2VectorsPerItem - 1) / kQ2VectorsPerItem);
}

Q2Kernel ChooseQ2Kernel() { return HWY_DYNAMIC_DISPATCH(Choose)(); }

void Q2Prepare(const Job& job, int64_t item) { HWY_DYNAMIC_DISPATCH(Prepare)(job, item); }

}  // namespace fulcrum::cpu
#endif  // HWY_ONCE

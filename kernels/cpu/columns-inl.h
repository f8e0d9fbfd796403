// Per instruction set: the launch's BF16 activation rows as F32, columns of a run side by side and
// k in the order of the packed weights, so that a kernel's inner loop reads them with one pointer.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_COLUMNS_INL_H_
#undef FULCRUM_CPU_COLUMNS_INL_H_
#else
#define FULCRUM_CPU_COLUMNS_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

inline constexpr int kColumnsPieceK = 512;  // K an item of PrepareColumns covers

HWY_INLINE int64_t ColumnsItems(const Job& job) {
  return (job.weight->spec().k + kColumnsPieceK - 1) / kColumnsPieceK;
}

// Where run `run` begins: [k][width] from there (k as layout.h counts it), padded to 16 with zeros.
HWY_INLINE float* RunColumns(const Job& job, const TileLayout& layout, int run) {
  return reinterpret_cast<float*>(job.columns) + layout.k * job.runs.first(run);
}

#if HWY_TARGET != HWY_SCALAR
// Eight columns' next 8 elements, transposed: out[i] is element i of every column.
using DH = hn::FixedTag<uint16_t, 8>;
HWY_INLINE void Transpose8(const uint16_t* const (&x)[8], int64_t k, hn::Vec<DH> (&out)[8]) {
  const DH d;
  const hn::Repartition<uint32_t, DH> d32;
  const hn::Repartition<uint64_t, DH> d64;
  hn::Vec<DH> a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = hn::LoadU(d, x[i] + k);
  for (int i = 0; i < 4; ++i) {  // pairs of columns
    b[i] = hn::InterleaveLower(d, a[2 * i], a[2 * i + 1]);
    b[4 + i] = hn::InterleaveUpper(d, a[2 * i], a[2 * i + 1]);
  }
  for (int h = 0; h < 8; h += 4) {  // fours
    for (int i = 0; i < 2; ++i) {
      const auto low = hn::BitCast(d32, b[h + 2 * i]), high = hn::BitCast(d32, b[h + 2 * i + 1]);
      a[h + 2 * i] = hn::BitCast(d, hn::InterleaveLower(d32, low, high));
      a[h + 2 * i + 1] = hn::BitCast(d, hn::InterleaveUpper(d32, low, high));
    }
  }
  for (int h = 0; h < 8; h += 4) {  // eights
    for (int i = 0; i < 2; ++i) {
      const auto low = hn::BitCast(d64, a[h + i]), high = hn::BitCast(d64, a[h + 2 + i]);
      out[h + 2 * i] = hn::BitCast(d, hn::InterleaveLower(d64, low, high));
      out[h + 2 * i + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, low, high));
    }
  }
}

// out[position][width] for k in [0, count), count a multiple of 16 and another k to follow: a group
// of fewer than 8 columns is stored 8 wide, what is too much is overwritten by what comes next.
HWY_INLINE void InterleaveColumns(const uint16_t* x, int64_t pitch, int width, int64_t count,
                                  float* out) {
  constexpr int kGroups = 2;  // a run has at most 16 columns
  const int groups = (width + 7) / 8;
  const hn::FixedTag<uint32_t, 4> d32;
  const hn::FixedTag<float, 4> df;
  const hn::Half<DH> dh;
  const uint16_t* columns[kGroups][8];
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < 8; ++i) columns[g][i] = x + std::min(g * 8 + i, width - 1) * pitch;
  }
  for (int64_t k = 0; k < count; k += kPadK) {
    hn::Vec<DH> rows[kGroups][2][8];
    for (int g = 0; g < groups; ++g) {
      Transpose8(columns[g], k, rows[g][0]);
      Transpose8(columns[g], k + 8, rows[g][1]);
    }
    for (int position = 0; position < kPadK; ++position) {
      const int i = numerics::LaneOrderK(position);
      for (int g = 0; g < groups; ++g) {
        float* const to = out + (k + position) * width + g * 8;
        const hn::Vec<DH>& row = rows[g][i / 8][i % 8];
        const auto low = hn::PromoteTo(d32, hn::LowerHalf(dh, row));
        const auto high = hn::PromoteTo(d32, hn::UpperHalf(dh, row));
        hn::StoreU(hn::BitCast(df, hn::ShiftLeft<16>(low)), df, to);
        hn::StoreU(hn::BitCast(df, hn::ShiftLeft<16>(high)), df, to + 4);
      }
    }
  }
}
#endif

HWY_INLINE void PrepareColumns(const Job& job, int64_t item) {
  const TileLayout layout(job.weight->spec());
  const int64_t first = item * kColumnsPieceK;
  const int64_t count = std::min<int64_t>(kColumnsPieceK, job.weight->spec().k - first);
  const int64_t padded = std::min<int64_t>(kColumnsPieceK, layout.k - first);
  for (int run = 0; run < job.runs.count; ++run) {
    const int width = job.runs.width(run);
    const uint16_t* const x = static_cast<const uint16_t*>(job.args.activations) +
                              job.runs.first(run) * job.args.activation_pitch + first;
    float* const out = RunColumns(job, layout, run) + first * width;
    const int64_t pitch = job.args.activation_pitch;
    int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
    if (width > 1 && count > kPadK) {
      k = (count - 1) / kPadK * kPadK;
      InterleaveColumns(x, pitch, width, k, out);
    }
#endif
    for (; k < padded; k += kPadK) {
      for (int position = 0; position < kPadK; ++position) {
        const int64_t from = k + numerics::LaneOrderK(position);
        for (int c = 0; c < width; ++c) {
          out[(k + position) * width + c] = from < count ? Bf16ToF32(x[c * pitch + from]) : 0.0f;
        }
      }
    }
  }
}

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_COLUMNS_INL_H_

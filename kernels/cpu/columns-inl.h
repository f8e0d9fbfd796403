// Per instruction set: the launch's BF16 activation rows as F32, columns of a run side by side, so
// that a kernel's inner loop reads them with one pointer. SPDX-License-Identifier: Apache-2.0
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

// Where run `run` begins: [k][width] from there, k padded to 16 with zeros.
HWY_INLINE float* RunColumns(const Job& job, const TileLayout& layout, int run) {
  return reinterpret_cast<float*>(job.columns) + layout.k * job.runs.first(run);
}

template <int kWidth>
HWY_INLINE void InterleaveColumns(const uint16_t* x, int64_t pitch, int64_t count, float* out) {
  for (int64_t k = 0; k < count; ++k) {
    for (int c = 0; c < kWidth; ++c) out[k * kWidth + c] = Bf16ToF32(x[c * pitch + k]);
  }
}

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
    if (width == 8) {
      InterleaveColumns<8>(x, pitch, count, out);
    } else if (width == 1) {
      InterleaveColumns<1>(x, pitch, count, out);
    } else {
      for (int64_t k = 0; k < count; ++k) {
        for (int c = 0; c < width; ++c) out[k * width + c] = Bf16ToF32(x[c * pitch + k]);
      }
    }
    std::fill(out + count * width, out + padded * width, 0.0f);
  }
}

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_COLUMNS_INL_H_

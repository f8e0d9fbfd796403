// Per instruction set: class exact for fp8 and bf16 (order.h), a SIMD lane being a weight row, so
// the four lanes of the order are four accumulators. Three ways through the same order:
// - few columns: weights are decoded in registers and used at once, all four lanes side by side;
// the
//   read of the weights is the time;
// - many columns, many registers (exact_lanes-inl.h) and
// - many columns, few registers (exact_pieces-inl.h), where multiply-adds are the time.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_EXACT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_EXACT_INL_H_
#undef FULCRUM_CPU_EXACT_INL_H_
#else
#define FULCRUM_CPU_EXACT_INL_H_
#endif

#include <cmath>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/columns-inl.h"
#include "kernels/cpu/exact_lanes-inl.h"
#include "kernels/cpu/exact_pieces-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

template <class Codec>
class ExactKernel {
 public:
  using Columns = std::conditional_t<kManyRegisters, ExactLanes<Codec>, ExactPieces<Codec>>;
  static constexpr int kStreamColumns = kManyRegisters ? 4 : 1;

  static ColumnRuns Runs(int m) {
    return ColumnRuns::Of(m, m <= kStreamColumns ? kStreamColumns : Columns::kMaxWidth);
  }

  static void Item(const Job& job, int64_t item, ThreadScratch& scratch) {
    const TileLayout layout(job.weight->spec());
    const Codec codec(*job.weight);
    ExactRows rows = {.block = job.items.block(item),
                      .first_tile = job.items.first_tile(item),
                      .end_tile = job.items.end_tile(item)};
    for (; rows.segment < layout.segments; ++rows.segment) {
      const float* panels[kMaxDecodeRows];
      if (job.args.m <= kStreamColumns) {
        ScalePanels<false>(job, layout, rows, scratch, panels);
        for (int tile = rows.first_tile; tile < rows.end_tile; ++tile) {
          const uint8_t* const w =
              TileWeights<Codec>(job, layout, rows.block, rows.segment, tile, scratch);
          StreamFor(job.args.m)(codec, w, panels[0], layout.SegmentK(rows.segment),
                                rows.segment == 0, scratch.total + tile * kTileRows);
        }
      } else {
        ScalePanels<Columns::kLaneOrder>(job, layout, rows, scratch, panels);
        Columns::Add(job, layout, codec, rows, panels, scratch);
      }
    }
    StoreRows(job, rows.block, rows.first_tile, rows.end_tile, scratch.total);
  }

 private:
  using Stream = void (*)(const Codec&, const uint8_t*, const float*, int64_t, bool, float*);

  // xs = x * scale for one segment of a block's rows, one panel a run: [k][width], or with
  // kLaneOrder [lane][k of the lane][width]. Without scales and in order of k it is x itself.
  template <bool kLaneOrder>
  static void ScalePanels(const Job& job, const TileLayout& layout, const ExactRows& rows,
                          ThreadScratch& scratch, const float* (&panels)[kMaxDecodeRows]) {
    const int64_t segment_k = layout.SegmentK(rows.segment);
    const int64_t first_k = rows.segment * layout.segment_k;
    for (int run = 0; run < job.runs.count; ++run) {
      const int width = job.runs.width(run);
      const float* const x = RunColumns(job, layout, run) + first_k * width;
      panels[run] = x;
      if constexpr (!Codec::kScaled && !kLaneOrder) continue;
      float* const panel = scratch.panel + segment_k * job.runs.first(run);
      panels[run] = panel;
      for (int64_t k = 0; k < segment_k; k += numerics::kBlockK) {
        const float scale = BlockScale(job, rows.block, first_k + k);
        const int64_t end = std::min<int64_t>(k + numerics::kBlockK, segment_k);
        if constexpr (!kLaneOrder) {
          Scale(x + k * width, scale, (end - k) * width, panel + k * width);
        } else {
          for (int lane = 0; lane < numerics::kExactLanes; ++lane) {
            float* const to = panel + lane * segment_k / 4 * width;
            for (int64_t group = k; group < end; group += 16) {
              Scale(x + (group + lane * 4) * width, scale, 4 * width, to + group / 4 * width);
            }
          }
        }
      }
    }
  }

  // The order pads K to whole blocks with zeros, and zero times a scale that is not finite is NaN:
  // such a block is NaN as a whole. Else the padding is nothing and is left out.
  static float BlockScale(const Job& job, int64_t block, int64_t k) {
    if constexpr (!Codec::kScaled) return 1.0f;
    const float scale = job.weight->BlockScales(block)[k / numerics::kBlockK];
    const bool padded = k + numerics::kBlockK > job.weight->spec().k;
    return padded && !std::isfinite(scale) ? std::nanf("") : scale;
  }

  static HWY_INLINE void Scale(const float* HWY_RESTRICT x, float scale, int64_t count,
                               float* HWY_RESTRICT out) {
    const DF d;
    const VF s = hn::Set(d, scale);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, x + i), s), d, out + i);
    for (; i < count; ++i) out[i] = x[i] * scale;
  }

  template <int kColumns>
  static void StreamTile(const Codec& codec, const uint8_t* HWY_RESTRICT w,
                         const float* HWY_RESTRICT x, int64_t segment_k, bool first,
                         float* HWY_RESTRICT total) {
    const DF d;
    const Codec local = codec;
    VF acc[4][kColumns][kTileVecs];
    for (auto& lane : acc) {
      for (auto& column : lane) {
        for (VF& v : column) v = hn::Zero(d);
      }
    }
    for (int64_t k = 0; k < segment_k; k += 16) {
      HWY_UNROLL(4)
      for (int lane = 0; lane < 4; ++lane) {
        VF decoded[4][kTileVecs];
        Prefetch4<Codec>(w + kPrefetchBytes);
        local.Decode4(w, decoded);
        w += 4 * kTileRows * Codec::kBytes;
        HWY_UNROLL(4)
        for (int j = 0; j < 4; ++j) {
          HWY_UNROLL(4)
          for (int c = 0; c < kColumns; ++c) {
            const VF xs = hn::Set(d, x[j * kColumns + c]);
            HWY_UNROLL(4)
            for (int v = 0; v < kTileVecs; ++v) {
              acc[lane][c][v] = Fma(decoded[j][v], xs, acc[lane][c][v]);
            }
          }
        }
        x += 4 * kColumns;
      }
    }
    for (int c = 0; c < kColumns; ++c) {
      for (int v = 0; v < kTileVecs; ++v) {
        EndExactSegment(acc[0][c][v], acc[1][c][v], acc[2][c][v], acc[3][c][v], first,
                        total + c * kBlockRows + v * kLanes);
      }
    }
  }

  static Stream StreamFor(int columns) {
    constexpr auto table = []<size_t... i>(std::index_sequence<i...>) {
      return std::array<Stream, sizeof...(i)>{&StreamTile<static_cast<int>(i) + 1>...};
    }
    (std::make_index_sequence<kStreamColumns>());
    return table[static_cast<size_t>(columns - 1)];
  }
};

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_EXACT_INL_H_

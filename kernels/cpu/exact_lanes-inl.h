// Per instruction set: class exact for many columns where registers are many. One of the order's
// four lanes at a time: its accumulators, one a column, stay in registers over a whole segment, and
// weights are decoded in registers, once a lane, that is once in all. The lane's activations stay
// in L1 for all tiles of the item; its weights come from L2, into which the segment before asked
// for them.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_EXACT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_EXACT_LANES_INL_H_
#undef FULCRUM_CPU_EXACT_LANES_INL_H_
#else
#define FULCRUM_CPU_EXACT_LANES_INL_H_
#endif

#include <array>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/exact_segment-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

template <class Codec>
class ExactLanes {
 public:
  static constexpr int kMaxWidth = 16;
  static constexpr bool kLaneOrder = true;  // of the panels

  static void Add(const Job& job, const TileLayout& layout, const Codec& codec,
                  const ExactRows& rows, const float* const* panels, ThreadScratch& scratch) {
    const int64_t segment_k = layout.SegmentK(rows.segment);
    const uint8_t* const next = NextWeights(job, layout, rows);
    for (int run = 0; run < job.runs.count; ++run) {
      const int width = job.runs.width(run);
      for (int lane = 0; lane < numerics::kExactLanes; ++lane) {
        const float* const x = panels[run] + lane * segment_k / 4 * width;
        for (int tile = rows.first_tile; tile < rows.end_tile; ++tile) {
          const uint8_t* const w =
              TileWeights<Codec>(job, layout, rows.block, rows.segment, tile, scratch);
          const int64_t to_next =
              run != 0
                  ? 0
                  : next - w + (tile - rows.first_tile) * kTileRows * segment_k * Codec::kBytes;
          PassFor(width)(codec, w + lane * kLaneBytes, x, segment_k / 16, to_next,
                         Sums(scratch, lane, tile, job.runs.first(run)));
        }
      }
    }
    const DF d;
    for (int tile = rows.first_tile; tile < rows.end_tile; ++tile) {
      for (int c = 0; c < job.args.m; ++c) {
        for (int v = 0; v < kTileVecs; ++v) {
          const auto at = [&](int lane) {
            return hn::Load(d, Sums(scratch, lane, tile, c) + v * kLanes);
          };
          EndExactSegment(at(0), at(1), at(2), at(3), rows.segment == 0,
                          scratch.total + c * kBlockRows + tile * kTileRows + v * kLanes);
        }
      }
    }
  }

 private:
  using Pass = void (*)(const Codec&, const uint8_t*, const float*, int64_t, int64_t, float*);
  static constexpr int64_t kLaneBytes = 4 * kTileRows * Codec::kBytes;  // of 4 k

  // [lane][tile][column][16 rows]
  static float* Sums(ThreadScratch& scratch, int lane, int tile, int column) {
    return scratch.lanes + ((lane * kTilesPerBlock + tile) * kMaxDecodeRows + column) * kTileRows;
  }

  // What this thread will most likely read after this segment.
  static const uint8_t* NextWeights(const Job& job, const TileLayout& layout,
                                    const ExactRows& rows) {
    const bool last = rows.segment + 1 == layout.segments;
    const int64_t block =
        last ? std::min(rows.block + job.threads, layout.blocks() - 1) : rows.block;
    return job.weight->data() +
           layout.Offset(block, last ? 0 : rows.segment + 1, last ? 0 : rows.first_tile) *
               Codec::kBytes;
  }

  // x: [k of the lane][kColumns]. sums: [column][16 rows], written.
  template <int kColumns>
  static void PassTile(const Codec& codec, const uint8_t* HWY_RESTRICT w,
                       const float* HWY_RESTRICT x, int64_t groups, int64_t to_next,
                       float* HWY_RESTRICT sums) {
    const DF d;
    const Codec local = codec;
    VF acc[kColumns][kTileVecs];
    HWY_UNROLL(16)
    for (int c = 0; c < kColumns; ++c) {
      HWY_UNROLL(4)
      for (int v = 0; v < kTileVecs; ++v) acc[c][v] = hn::Zero(d);
    }
    for (int64_t group = 0; group < groups; ++group) {
      VF weights[4][kTileVecs];
      Prefetch4<Codec>(w + 16 * 4 * kLaneBytes);
      __builtin_prefetch(w + to_next, 0, 1);
      if constexpr (Codec::kBytes == 2) __builtin_prefetch(w + to_next + kLineBytes, 0, 1);
      local.Decode4(w, weights);
      HWY_UNROLL(4)
      for (int j = 0; j < 4; ++j) {
        HWY_UNROLL(16)
        for (int c = 0; c < kColumns; ++c) {
          const VF xs = hn::Set(d, x[j * kColumns + c]);
          HWY_UNROLL(4)
          for (int v = 0; v < kTileVecs; ++v) acc[c][v] = Fma(weights[j][v], xs, acc[c][v]);
        }
      }
      w += 4 * kLaneBytes;
      x += 4 * kColumns;
    }
    HWY_UNROLL(16)
    for (int c = 0; c < kColumns; ++c) {
      HWY_UNROLL(4)
      for (int v = 0; v < kTileVecs; ++v)
        hn::Store(acc[c][v], d, sums + c * kTileRows + v * kLanes);
    }
  }

  static Pass PassFor(int columns) {
    constexpr auto table = []<size_t... i>(std::index_sequence<i...>) {
      return std::array<Pass, sizeof...(i)>{&PassTile<static_cast<int>(i) + 1>...};
    }
    (std::make_index_sequence<kMaxWidth>());
    return table[static_cast<size_t>(columns - 1)];
  }
};

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_EXACT_LANES_INL_H_

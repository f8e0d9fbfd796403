// Per instruction set: class exact for many columns where registers are few. A piece of weights is
// decoded once to L1, then each of the order's four lanes sweeps it with a register tile of rows x
// columns.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_EXACT_PIECES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_EXACT_PIECES_INL_H_
#undef FULCRUM_CPU_EXACT_PIECES_INL_H_
#else
#define FULCRUM_CPU_EXACT_PIECES_INL_H_
#endif

#include <array>
#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/exact_segment-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

template <class Codec>
class ExactPieces {
 public:
  static constexpr int kMaxWidth = 6;
  static constexpr bool kLaneOrder = false;  // of the panels

  static void Add(const Job& job, const TileLayout& layout, const Codec& codec,
                  const ExactRows& rows, const float* const* panels, ThreadScratch& scratch) {
    for (int tile = rows.first_tile; tile < rows.end_tile; tile += kMicroTiles) {
      AddTiles(job, layout, codec, rows, tile, std::min(tile + kMicroTiles, rows.end_tile), panels,
               scratch);
    }
  }

 private:
  // K decoded at a time: weights and activations of a piece take half of a 48 KB L1.
  static constexpr int64_t kDecodedK = 128;
  static_assert(kDecodedK <= ThreadScratch::kChunkK);

  using Micro = void (*)(const float*, const float*, int64_t, float*);

  // One lane of the order over `groups` groups of 16 k. w: [k][kMicroRows], x: [k][kColumns], both
  // from the lane's first k. sums: [column][kMicroRows], continued.
  template <int kColumns>
  static void SweepLane(const float* HWY_RESTRICT w, const float* HWY_RESTRICT x, int64_t groups,
                        float* HWY_RESTRICT sums) {
    const DF d;
    VF acc[kColumns][kMicroVecs];
    HWY_UNROLL(8)
    for (int c = 0; c < kColumns; ++c) {
      HWY_UNROLL(4)
      for (int v = 0; v < kMicroVecs; ++v) {
        acc[c][v] = hn::Load(d, sums + c * kMicroRows + v * kLanes);
      }
    }
    for (int64_t group = 0; group < groups; ++group) {
      HWY_UNROLL(4)
      for (int j = 0; j < 4; ++j) {
        VF weights[kMicroVecs];
        HWY_UNROLL(4)
        for (int v = 0; v < kMicroVecs; ++v) {
          weights[v] = hn::Load(d, w + j * kMicroRows + v * kLanes);
        }
        HWY_UNROLL(8)
        for (int c = 0; c < kColumns; ++c) {
          const VF xs = hn::Set(d, x[j * kColumns + c]);
          HWY_UNROLL(4)
          for (int v = 0; v < kMicroVecs; ++v) acc[c][v] = Fma(weights[v], xs, acc[c][v]);
        }
      }
      w += 16 * kMicroRows;
      x += 16 * kColumns;
    }
    HWY_UNROLL(8)
    for (int c = 0; c < kColumns; ++c) {
      HWY_UNROLL(4)
      for (int v = 0; v < kMicroVecs; ++v) {
        hn::Store(acc[c][v], d, sums + c * kMicroRows + v * kLanes);
      }
    }
  }

  static Micro MicroFor(int columns) {
    constexpr auto table = []<size_t... i>(std::index_sequence<i...>) {
      return std::array<Micro, sizeof...(i)>{&SweepLane<static_cast<int>(i) + 1>...};
    }
    (std::make_index_sequence<kMaxWidth>());
    return table[static_cast<size_t>(columns - 1)];
  }

  static void AddTiles(const Job& job, const TileLayout& layout, const Codec& codec,
                       const ExactRows& rows, int tile, int end, const float* const* panels,
                       ThreadScratch& scratch) {
    const int64_t segment_k = layout.SegmentK(rows.segment);
    const uint8_t* w[kMicroTiles];
    for (int i = 0; i < kMicroTiles; ++i) {
      // Without a second tile the first is computed twice and stored once.
      w[i] = TileWeights<Codec>(job, layout, rows.block, rows.segment, std::min(tile + i, end - 1),
                                scratch);
    }
    const int m = job.args.m;
    const int lane_size = m * kMicroRows;
    std::memset(scratch.lanes, 0, sizeof(float) * static_cast<size_t>(4 * lane_size));
    for (int64_t k = 0; k < segment_k; k += kDecodedK) {
      const int64_t count = std::min<int64_t>(kDecodedK, segment_k - k);
      for (int i = 0; i < kMicroTiles; ++i) {
        DecodeTile(codec, w[i] + k * kTileRows * Codec::kBytes, count,
                   scratch.decoded + i * kTileRows);
      }
      for (int lane = 0; lane < 4; ++lane) {
        for (int run = 0; run < job.runs.count; ++run) {
          const int width = job.runs.width(run);
          MicroFor(width)(scratch.decoded + 4 * lane * kMicroRows,
                          panels[run] + (k + 4 * lane) * width, count / 16,
                          scratch.lanes + lane * lane_size + job.runs.first(run) * kMicroRows);
        }
      }
    }
    const DF d;
    for (int i = 0; i < end - tile; ++i) {
      for (int c = 0; c < m; ++c) {
        for (int v = 0; v < kTileVecs; ++v) {
          const float* const at = scratch.lanes + c * kMicroRows + i * kTileRows + v * kLanes;
          EndExactSegment(hn::Load(d, at), hn::Load(d, at + lane_size),
                          hn::Load(d, at + 2 * lane_size), hn::Load(d, at + 3 * lane_size),
                          rows.segment == 0,
                          scratch.total + c * kBlockRows + (tile + i) * kTileRows + v * kLanes);
        }
      }
    }
  }
};

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_EXACT_PIECES_INL_H_

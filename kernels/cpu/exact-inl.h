// Per instruction set: class exact for fp8 and bf16 (order.h), a SIMD lane being a weight row, so
// the four lanes of the order are four accumulators.
// Few columns: weights are decoded in registers and used at once; the read of the weights is the
// time. More columns: a piece of weights is decoded once to L1, then each of the order's four lanes
// sweeps it with a register tile of rows x columns; multiply-adds are the time.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_EXACT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_EXACT_INL_H_
#undef FULCRUM_CPU_EXACT_INL_H_
#else
#define FULCRUM_CPU_EXACT_INL_H_
#endif

#include <cmath>
#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/columns-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

template <class Codec>
class ExactKernel {
 public:
  static constexpr int kStreamColumns = kManyRegisters ? 4 : 1;
  static constexpr int kMaxWidth = kManyRegisters ? 8 : 6;

  static ColumnRuns Runs(int m) {
    return ColumnRuns::Of(m, m <= kStreamColumns ? kStreamColumns : kMaxWidth);
  }

  static void Item(const Job& job, int64_t item, ThreadScratch& scratch) {
    const TileLayout layout(job.weight->spec());
    const Codec codec(*job.weight);
    const int64_t block = job.items.block(item);
    const int first = job.items.first_tile(item), end = job.items.end_tile(item);
    for (int64_t segment = 0; segment < layout.segments; ++segment) {
      const float* panels[kMaxDecodeRows];
      ScalePanels(job, layout, block, segment, scratch, panels);
      if (job.args.m <= kStreamColumns) {
        for (int tile = first; tile < end; ++tile) {
          const uint8_t* const w = TileWeights<Codec>(job, layout, block, segment, tile, scratch);
          StreamFor(job.args.m)(codec, w, panels[0], layout.SegmentK(segment), segment == 0,
                                scratch.total + tile * kTileRows);
        }
      } else {
        for (int tile = first; tile < end; tile += kMicroTiles) {
          Tiles(job, layout, codec, block, segment, tile, std::min(tile + kMicroTiles, end), panels,
                scratch);
        }
      }
    }
    StoreRows(job, block, first, end, scratch.total);
  }

 private:
  // K decoded at a time: weights and activations of a piece take half of a 48 KB L1.
  static constexpr int64_t kDecodedK = 128;
  static_assert(kDecodedK <= ThreadScratch::kChunkK);

  using Stream = void (*)(const Codec&, const uint8_t*, const float*, int64_t, bool, float*);
  using Micro = void (*)(const float*, const float*, int64_t, float*);

  // xs = x * scale for the block's rows, one [k][width] panel a run. Without scales x itself.
  static void ScalePanels(const Job& job, const TileLayout& layout, int64_t block, int64_t segment,
                          ThreadScratch& scratch, const float* (&panels)[kMaxDecodeRows]) {
    const DF d;
    const int64_t segment_k = layout.SegmentK(segment);
    for (int run = 0; run < job.runs.count; ++run) {
      const int width = job.runs.width(run);
      const float* const x = RunColumns(job, layout, run) + segment * layout.segment_k * width;
      panels[run] = x;
      if constexpr (!Codec::kScaled) continue;
      float* const panel = scratch.panel + segment_k * job.runs.first(run);
      panels[run] = panel;
      const float* const scales =
          job.weight->BlockScales(block) + segment * layout.segment_k / numerics::kBlockK;
      for (int64_t k = 0; k < segment_k; k += numerics::kBlockK) {
        // The order pads K to whole blocks with zeros, and zero times a scale that is not finite is
        // NaN: such a block is NaN as a whole. Else the padding is nothing and is left out.
        const float value = scales[k / numerics::kBlockK];
        const bool padded =
            segment * layout.segment_k + k + numerics::kBlockK > job.weight->spec().k;
        const VF scale = hn::Set(d, padded && !std::isfinite(value) ? std::nanf("") : value);
        const int64_t end = std::min<int64_t>(k + numerics::kBlockK, segment_k) * width;
        for (int64_t i = k * width; i < end; i += kLanes) {
          hn::StoreU(hn::Mul(hn::LoadU(d, x + i), scale), d, panel + i);
        }
      }
    }
  }

  // (a0 + a2) + (a1 + a3), then added to the segments before.
  static HWY_INLINE void EndSegment(VF a0, VF a1, VF a2, VF a3, bool first, float* total) {
    const DF d;
    const VF sum = hn::Add(hn::Add(a0, a2), hn::Add(a1, a3));
    hn::StoreU(first ? sum : hn::Add(hn::LoadU(d, total), sum), d, total);
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
        constexpr int kAhead = kPrefetchBytes * 2 / Codec::kBytes;  // measured best for each
        PrefetchStream(w + kAhead);
        if constexpr (Codec::kBytes == 2) PrefetchStream(w + kAhead + 64);
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
        EndSegment(acc[0][c][v], acc[1][c][v], acc[2][c][v], acc[3][c][v], first,
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

  static void Tiles(const Job& job, const TileLayout& layout, const Codec& codec, int64_t block,
                    int64_t segment, int tile, int end, const float* const* panels,
                    ThreadScratch& scratch) {
    const int64_t segment_k = layout.SegmentK(segment);
    const uint8_t* w[kMicroTiles];
    for (int i = 0; i < kMicroTiles; ++i) {
      // Without a second tile the first is computed twice and stored once.
      w[i] = TileWeights<Codec>(job, layout, block, segment, std::min(tile + i, end - 1), scratch);
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
          EndSegment(hn::Load(d, at), hn::Load(d, at + lane_size), hn::Load(d, at + 2 * lane_size),
                     hn::Load(d, at + 3 * lane_size), segment == 0,
                     scratch.total + c * kBlockRows + (tile + i) * kTileRows + v * kLanes);
        }
      }
    }
  }
};

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_EXACT_INL_H_

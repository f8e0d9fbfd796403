// Per instruction set: class blockfold for fp8 and bf16 (order.h), a SIMD lane being a weight row.
// One chain a (row, column) and block, so a register holds a whole inner sum: where registers are
// many, weights are decoded in registers for up to 16 columns and never stored; where they are few,
// a piece is decoded to L1 first when there is more than one column.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_BLOCKFOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_BLOCKFOLD_INL_H_
#undef FULCRUM_CPU_BLOCKFOLD_INL_H_
#else
#define FULCRUM_CPU_BLOCKFOLD_INL_H_
#endif

#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/columns-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

template <class Codec>
class BlockfoldKernel {
 public:
  static constexpr int kStreamColumns = kManyRegisters ? 16 : 1;
  static constexpr int kTiledColumns = kManyRegisters ? 0 : 6;  // 0: everything streams

  static ColumnRuns Runs(int m) {
    const bool streams = kTiledColumns == 0 || m <= kStreamColumns;
    return ColumnRuns::Of(m, streams ? kStreamColumns : kTiledColumns);
  }

  static void Item(const Job& job, int64_t item, ThreadScratch& scratch) {
    const TileLayout layout(job.weight->spec());
    const Codec codec(*job.weight);
    const int64_t block = job.items.block(item);
    const int first = job.items.first_tile(item), end = job.items.end_tile(item);
    // Few columns: their activations stay in cache over a whole segment, which the weights then
    // cross in memory order. Many: a piece of them must be used by all tiles before the next.
    const int64_t step = job.args.m <= std::min(2, kStreamColumns) ? layout.segment_k : kPieceK;
    for (int64_t segment = 0; segment < layout.segments; ++segment) {
      std::memset(scratch.lanes, 0, sizeof(float) * static_cast<size_t>(job.args.m * kBlockRows));
      const int64_t segment_k = layout.SegmentK(segment);
      for (int64_t k = 0; k < segment_k; k += step) {
        for (int tile = first; tile < end; ++tile) {
          Piece(job, layout, codec, block, segment, tile, k, std::min(step, segment_k - k),
                scratch);
        }
      }
      AddSegment(job.args.m, first, end, segment == 0, scratch);
    }
    StoreRows(job, block, first, end, scratch.total);
  }

 private:
  static constexpr int64_t kPieceK = 2 * numerics::kBlockK;
  static_assert(kPieceK <= ThreadScratch::kChunkK);

  using Fold = void (*)(const Codec&, const uint8_t*, const float*, const float*, int64_t, float*);
  using TiledFold = void (*)(const float*, const float*, float, int64_t, float*);

  // Folds [k, k + count) of one tile into scratch.lanes, here the outer sums [column][128 rows].
  static void Piece(const Job& job, const TileLayout& layout, const Codec& codec, int64_t block,
                    int64_t segment, int tile, int64_t k, int64_t count, ThreadScratch& scratch) {
    const uint8_t* const w = TileWeights<Codec>(job, layout, block, segment, tile, scratch) +
                             k * kTileRows * Codec::kBytes;
    const int64_t global_k = segment * layout.segment_k + k;
    const float* scales = nullptr;
    if constexpr (Codec::kScaled) {
      scales = job.weight->BlockScales(block) + global_k / numerics::kBlockK;
    }
    float* const outer = scratch.lanes + tile * kTileRows;
    const bool tiled = kTiledColumns != 0 && job.args.m > kStreamColumns;
    if (tiled) DecodeTile(codec, w, count, scratch.decoded);
    for (int run = 0; run < job.runs.count; ++run) {
      const int width = job.runs.width(run);
      const float* const x = RunColumns(job, layout, run) + global_k * width;
      float* const sums = outer + job.runs.first(run) * kBlockRows;
      if (!tiled) {
        FoldFor(width)(codec, w, x, scales, count, sums);
        continue;
      }
      for (int64_t b = 0; b < count; b += numerics::kBlockK) {
        TiledFoldFor(width)(scratch.decoded + b * kMicroRows, x + b * width,
                            scales == nullptr ? 1.0f : scales[b / numerics::kBlockK],
                            std::min<int64_t>(numerics::kBlockK, count - b), sums);
      }
    }
  }

  static void AddSegment(int m, int first, int end, bool first_segment, ThreadScratch& scratch) {
    const DF d;
    for (int c = 0; c < m; ++c) {
      const int row = c * kBlockRows;
      for (int i = row + first * kTileRows; i < row + end * kTileRows; i += kLanes) {
        const VF sum = hn::Load(d, scratch.lanes + i);
        hn::Store(first_segment ? sum : hn::Add(hn::Load(d, scratch.total + i), sum), d,
                  scratch.total + i);
      }
    }
  }

  template <int kColumns>
  static HWY_INLINE void FoldInto(const VF (&inner)[kColumns][kTileVecs], float scale,
                                  float* HWY_RESTRICT sums) {
    const DF d;
    const VF s = hn::Set(d, scale);
    HWY_UNROLL(16)
    for (int c = 0; c < kColumns; ++c) {
      HWY_UNROLL(4)
      for (int v = 0; v < kTileVecs; ++v) {
        float* const at = sums + c * kBlockRows + v * kLanes;
        hn::Store(Fma(s, inner[c][v], hn::Load(d, at)), d, at);
      }
    }
  }

  // Whole blocks, weights decoded in registers. x: [k][kColumns].
  template <int kColumns>
  static void FoldBlocks(const Codec& codec, const uint8_t* HWY_RESTRICT w,
                         const float* HWY_RESTRICT x, const float* HWY_RESTRICT scales,
                         int64_t count, float* HWY_RESTRICT sums) {
    const DF d;
    const Codec local = codec;
    for (int64_t b = 0; b < count; b += numerics::kBlockK) {
      VF inner[kColumns][kTileVecs];
      for (auto& column : inner) {
        for (VF& v : column) v = hn::Zero(d);
      }
      const int64_t end = std::min<int64_t>(numerics::kBlockK, count - b);
      for (int64_t k = 0; k < end; k += 4) {
        VF weights[4][kTileVecs];
        Prefetch4<Codec>(w + kPrefetchBytes);
        local.Decode4(w, weights);
        w += 4 * kTileRows * Codec::kBytes;
        HWY_UNROLL(4)
        for (const int j : {1, 0, 3, 2}) {  // the odd element of a pair first
          HWY_UNROLL(16)
          for (int c = 0; c < kColumns; ++c) {
            const VF xs = hn::Set(d, x[j * kColumns + c]);
            HWY_UNROLL(4)
            for (int v = 0; v < kTileVecs; ++v) inner[c][v] = Fma(weights[j][v], xs, inner[c][v]);
          }
        }
        x += 4 * kColumns;
      }
      FoldInto<kColumns>(inner, scales == nullptr ? 1.0f : scales[b / numerics::kBlockK], sums);
    }
  }

  static Fold FoldFor(int columns) {
    constexpr auto table = []<size_t... i>(std::index_sequence<i...>) {
      return std::array<Fold, sizeof...(i)>{&FoldBlocks<static_cast<int>(i) + 1>...};
    }
    (std::make_index_sequence<kStreamColumns>());
    return table[static_cast<size_t>(columns - 1)];
  }

  // One block of one tile from decoded weights [k][kMicroRows].
  template <int kColumns>
  static void FoldDecoded(const float* HWY_RESTRICT w, const float* HWY_RESTRICT x, float scale,
                          int64_t count, float* HWY_RESTRICT sums) {
    const DF d;
    VF inner[kColumns][kTileVecs];
    for (auto& column : inner) {
      for (VF& v : column) v = hn::Zero(d);
    }
    for (int64_t k = 0; k < count; k += 2) {
      HWY_UNROLL(2)
      for (const int j : {1, 0}) {
        VF weights[kTileVecs];
        for (int v = 0; v < kTileVecs; ++v) {
          weights[v] = hn::Load(d, w + j * kMicroRows + v * kLanes);
        }
        HWY_UNROLL(8)
        for (int c = 0; c < kColumns; ++c) {
          const VF xs = hn::Set(d, x[j * kColumns + c]);
          HWY_UNROLL(4)
          for (int v = 0; v < kTileVecs; ++v) inner[c][v] = Fma(weights[v], xs, inner[c][v]);
        }
      }
      w += 2 * kMicroRows;
      x += 2 * kColumns;
    }
    FoldInto<kColumns>(inner, scale, sums);
  }

  static TiledFold TiledFoldFor(int columns) {
    constexpr auto table = []<size_t... i>(std::index_sequence<i...>) {
      return std::array<TiledFold, sizeof...(i)>{&FoldDecoded<static_cast<int>(i) + 1>...};
    }
    (std::make_index_sequence < kTiledColumns == 0 ? 1 : kTiledColumns > ());
    return table[static_cast<size_t>(columns - 1)];
  }
};

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_BLOCKFOLD_INL_H_

// Per instruction set: how the fp8 and bf16 arms walk the tiles of an item, whatever their class.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_TILE_INL_H_
#undef FULCRUM_CPU_TILE_INL_H_
#else
#define FULCRUM_CPU_TILE_INL_H_
#endif

#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/codec-inl.h"
#include "kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

// Tiles whose rows one register tile covers: two vectors' worth, at least one tile.
inline constexpr int kMicroTiles = kTileVecs >= 2 ? 1 : 2;
inline constexpr int kMicroVecs = kMicroTiles * kTileVecs;
inline constexpr int kMicroRows = kMicroTiles * kTileRows;

// How far ahead of its use a streamed weight is asked for. All hints but the non-temporal one do
// about as well; that one was measured at half the speed.
inline constexpr int kPrefetchBytes = 2048;

// Asks for the lines of 4 k of a tile.
template <class Codec>
HWY_INLINE void Prefetch4(const uint8_t* w) {
  hwy::Prefetch(w);
  if constexpr (Codec::kBytes == 2) hwy::Prefetch(w + kLineBytes);
}

// The weights of one tile within a segment, always 16 rows wide: a narrow last tile is copied out
// with zero rows.
template <class Codec>
HWY_INLINE const uint8_t* TileWeights(const Job& job, const TileLayout& layout, int64_t block,
                                      int64_t segment, int tile, ThreadScratch& scratch) {
  const uint8_t* const w = job.weight->data() + layout.Offset(block, segment, tile) * Codec::kBytes;
  const int rows = layout.RowsOfTile(block, tile);
  if (rows == kTileRows) return w;
  const int64_t lines = layout.SegmentK(segment) * Codec::kBytes / 4;
  std::memset(scratch.expanded, 0, static_cast<size_t>(lines * kLineBytes));
  for (int64_t i = 0; i < lines; ++i) {
    std::memcpy(scratch.expanded + i * kLineBytes, w + i * rows * 4, static_cast<size_t>(rows * 4));
  }
  return scratch.expanded;
}

// Decodes [k, k + count) of one tile into decoded[i][kMicroRows], starting at row `row`.
template <class Codec>
HWY_INLINE void DecodeTile(const Codec& codec, const uint8_t* HWY_RESTRICT w, int64_t count,
                           float* HWY_RESTRICT decoded) {
  const DF d;
  for (int64_t k = 0; k < count; k += 4) {
    VF v[4][kTileVecs];
    const uint8_t* const at = w + k * kTileRows * Codec::kBytes;
    Prefetch4<Codec>(at + kPrefetchBytes);
    codec.Decode4(at, v);
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
      HWY_UNROLL(4)
      for (int i = 0; i < kTileVecs; ++i) {
        hn::Store(v[j][i], d, decoded + (k + j) * kMicroRows + i * kLanes);
      }
    }
  }
}

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_TILE_INL_H_

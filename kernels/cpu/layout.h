// Where a weight's elements are in its resident copy: the geometry that Upload writes and the arms
// read. No bytes are touched here.
//
// fp8 and bf16. Rows are padded to 4, K to 16, with zeros. The order in memory is the order of
// reading: block of 128 rows, then K segment (order.h), then tile of 16 rows, then line, 4 bytes of
// every row. The k of every group of 16 are in lane order (numerics::LaneOrderK): what follows
// calls k, from here on, is that position. A line of bf16 has 2 k, [row][k % 2]; a line of fp8 has
// 4 k, [row / 4][k / 2 % 2][row % 4][k % 2], so that interleaving the low and high BF16 bytes of
// every 16 bytes gives one k pair of 4 rows. Either way a SIMD lane of 32 bits is a row. The last
// tile may have 4, 8 or 12 rows. The fp8 scales follow the elements.
//
// q2_0. A chunk is 32 weights, a SIMD lane is a chunk: per row, vectors of 16 chunks (the last may
// have fewer), each [half of the chunk][chunk] 32-bit words of 16 codes, low bits first as in the
// file. The FP16 scales [row][k / block] follow the codes of all rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/numerics/order.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kBlockRows = 128;  // rows that share their fp8 scales
inline constexpr int kTilesPerBlock = kBlockRows / kTileRows;
inline constexpr int kRowPad = 4;
inline constexpr int kPadK = 16;
inline constexpr int kLineBytes = 4 * kTileRows;  // of a tile of 16 rows
inline constexpr int kMaxSegmentK = numerics::kMaxSegmentBlocks * numerics::kBlockK;

constexpr int64_t RoundUp(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

// Where a row's code of k = 0..3 lies in a line of fp8.
constexpr int Fp8LineByte(int k, int row) { return row / 4 * 16 + k / 2 * 8 + row % 4 * 2 + k % 2; }

// fp8 and bf16.
struct TileLayout {
  explicit TileLayout(const WeightSpec& spec)
      : rows(RoundUp(spec.n, kRowPad)),
        k(RoundUp(spec.k, kPadK)),
        segment_k(numerics::SegmentBlocks(spec.k) * numerics::kBlockK),
        segments(numerics::Segments(spec.k)) {}

  int64_t rows, k;              // padded
  int64_t segment_k, segments;  // K of a full segment

  int64_t blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
  int64_t elements() const { return rows * k; }
  int64_t SegmentK(int64_t segment) const { return std::min(segment_k, k - segment * segment_k); }
  int BlockRows(int64_t block) const {
    return static_cast<int>(std::min<int64_t>(kBlockRows, rows - block * kBlockRows));
  }
  int BlockTiles(int64_t block) const { return (BlockRows(block) + kTileRows - 1) / kTileRows; }
  int RowsOfTile(int64_t block, int tile) const {
    return std::min(kTileRows, BlockRows(block) - tile * kTileRows);
  }
  // Element offset of (block, segment, tile).
  int64_t Offset(int64_t block, int64_t segment, int tile) const {
    return block * kBlockRows * k + segment * segment_k * BlockRows(block) +
           tile * kTileRows * SegmentK(segment);
  }
};

// q2_0.
struct ChunkLayout {
  explicit ChunkLayout(const WeightSpec& spec)
      : rows(spec.n),
        chunks(spec.k / numerics::kQ2ChunkK),
        scales_per_row(spec.k / spec.q2_block) {}

  static constexpr int kLanes = 16;  // chunks of a full vector
  int64_t rows, chunks, scales_per_row;

  int64_t vectors() const { return (chunks + kLanes - 1) / kLanes; }
  int LanesOf(int64_t vector) const {
    return static_cast<int>(std::min<int64_t>(kLanes, chunks - vector * kLanes));
  }
  int64_t row_code_bytes() const { return chunks * 8; }
  int64_t code_bytes() const { return rows * row_code_bytes(); }
  int64_t scale_offset() const { return RoundUp(code_bytes(), 64); }  // bytes
};

}  // namespace fulcrum::cpu

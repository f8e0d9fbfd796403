// The layout of a weight in device memory, which pack.cu writes and every CUDA arm reads. N is
// padded to 64 and K to 128 with zeros.
//
// A tile is 16 rows, a step 16 k, a block 8 steps. Within a step thread 4 g + t of a warp owns rows
// g and g + 8 at k = 2 t, 2 t + 1 (pair 0) and 2 t + 8, 2 t + 9 (pair 1). That is a thread's part
// of a tensor-core fragment and one lane of the exact order.
//
// Four tiles are a panel, the rows of one warpgroup product. A block of a panel is contiguous, so
// one bulk copy brings it.
//
// fp8: [panel][block][tile][quarter][thread][16 bytes]. A quarter is two steps; its 16 bytes are
// four words: step 0 k pair 0, step 0 pair 1, step 1 pair 0, step 1 pair 1. The two 16-bit halves
// of a word are the pair's two k, and a half holds the code of row g and of row g + 8 with their
// bits interleaved so that two masks give both as BF16 times 2^-120 (gemm/fragment.cuh). The F32
// scales [N / 128][K / 128] follow the codes.
//
// For class w8a8 a second copy of an fp8 weight follows the scales, as the file has it: rows of
// whole blocks, for a kernel that reads both operands from shared memory.
//
// bf16: [panel][block][tile][step][thread][16 bytes]: row g's two pairs, then row g + 8's.
//
// q2_0 has tiles of its own: q2_layout.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/layout/q2_layout.h"
#include "kernels/numerics/order.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kPanelTiles = 4;
inline constexpr int kPanelRows = kPanelTiles * kTileRows;
inline constexpr int kStepK = 16;
inline constexpr int kBlockK = numerics::kBlockK;
inline constexpr int kScaleRows = 128;       // rows that share their scales
inline constexpr int kFp8BlockBytes = 2048;  // of one tile
inline constexpr int kBf16BlockBytes = 4096;

// For q2_0 it gives the places of tiles; Q2Layout gives those within a tile.
struct TileLayout {
  TileLayout() = default;
  explicit TileLayout(const WeightSpec& spec, bool with_rows = false)
      : n(spec.n),
        k(spec.k),
        panels((spec.n + kPanelRows - 1) / kPanelRows),
        blocks(numerics::Blocks(spec.k)),
        block_bytes(spec.format == WeightFormat::kBf16 ? kBf16BlockBytes : kFp8BlockBytes),
        scale_rows(spec.format == WeightFormat::kFp8Block128 ? spec.scale_rows() : 0),
        q2(spec.format == WeightFormat::kQ2_0 ? Q2Layout(spec) : Q2Layout()),
        row_bytes(with_rows && spec.format == WeightFormat::kFp8Block128 ? blocks * kBlockK : 0) {}

  int64_t n = 0, k = 0;  // logical
  int64_t panels = 0, blocks = 0;
  int64_t block_bytes = 0;  // of one tile
  int64_t scale_rows = 0;
  Q2Layout q2 = {};       // q2_0 only
  int64_t row_bytes = 0;  // of the second copy, 0 without one

  int64_t tiles() const { return (n + kTileRows - 1) / kTileRows; }
  int64_t panel_block_bytes() const { return kPanelTiles * block_bytes; }
  // For q2_0 this includes the scales.
  int64_t code_bytes() const {
    return q2.chunks > 0 ? tiles() * q2.TileBytes() : panels * blocks * panel_block_bytes();
  }
  int64_t scale_offset() const { return (code_bytes() + 255) / 256 * 256; }
  int64_t scale_end() const { return scale_offset() + scale_rows * blocks * 4; }
  int64_t rows_offset() const { return (scale_end() + 255) / 256 * 256; }
  int64_t bytes() const { return row_bytes > 0 ? rows_offset() + n * row_bytes : scale_end(); }
};

}  // namespace fulcrum::cuda

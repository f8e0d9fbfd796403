// Transposes a panel of file rows into a tile in which all rows of one k lie together. Used at load
// only, but once per byte of a checkpoint, hence not a plain loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace fulcrum::cpu {

// The part of the input that exists: the rest of a tile is zeros.
struct Panel {
  int64_t row_bytes = 0;  // distance of two rows
  int rows = 0;           // at most tile_rows
  int64_t k = 0;
};

// One byte an element: out[k][tile_rows], k padded to 16.
void TransposeBytes(const std::byte* in, const Panel& panel, int tile_rows, std::byte* out);
// Two bytes an element: out[k / 2][tile_rows][2], k padded to 16.
void TransposePairs(const std::byte* in, const Panel& panel, int tile_rows, std::byte* out);

}  // namespace fulcrum::cpu

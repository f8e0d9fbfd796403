// Turns a panel of file rows into the lines of a tile (layout.h). Used at load only, but once per
// byte of a checkpoint.
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

// One byte an element: lines of 4 k. K is padded to 16.
void PackFp8Lines(const std::byte* in, const Panel& panel, int tile_rows, std::byte* out);
// Two bytes an element: lines of 2 k. K is padded to 16.
void PackBf16Lines(const std::byte* in, const Panel& panel, int tile_rows, std::byte* out);

}  // namespace fulcrum::cpu

// 16x16 bytes at a time: the inner loops have constant bounds, so they become shuffles.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/transpose.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/layout.h"

namespace fulcrum::cpu {
namespace {

// Rows of one group of 16 k, made whole with zeros.
void Gather(const std::byte* in, const Panel& panel, int64_t first_k, int64_t size,
            std::byte (&group)[kTileRows][kPadK * 2]) {
  const auto bytes = static_cast<size_t>(std::min<int64_t>(kPadK, panel.k - first_k) * size);
  if (panel.rows < kTileRows || bytes < kPadK * static_cast<size_t>(size)) {
    std::memset(group, 0, sizeof(group));
  }
  for (int row = 0; row < panel.rows; ++row) {
    std::memcpy(group[row], in + row * panel.row_bytes + first_k * size, bytes);
  }
}

// One of four equal steps that transpose a 16x16 matrix: rows i and i + 8 are interleaved.
void Interleave(const uint8_t (&from)[256], uint8_t (&to)[256]) {
  for (int i = 0; i < 128; i += 16) {
    for (int j = 0; j < 16; ++j) {
      to[2 * i + 2 * j] = from[i + j];
      to[2 * i + 2 * j + 1] = from[128 + i + j];
    }
  }
}

}  // namespace

void TransposeBytes(const std::byte* in, const Panel& panel, int tile_rows, std::byte* out) {
  std::byte group[kTileRows][kPadK * 2];
  uint8_t a[256], b[256];
  for (int64_t k = 0; k < panel.k; k += kPadK, out += kPadK * tile_rows) {
    Gather(in, panel, k, 1, group);
    for (int row = 0; row < kTileRows; ++row) std::memcpy(a + row * 16, group[row], 16);
    Interleave(a, b);
    Interleave(b, a);
    Interleave(a, b);
    Interleave(b, a);
    if (tile_rows == kTileRows) {
      std::memcpy(out, a, sizeof(a));
      continue;
    }
    for (int i = 0; i < kPadK; ++i) {
      std::memcpy(out + i * tile_rows, a + i * kTileRows, static_cast<size_t>(tile_rows));
    }
  }
}

void TransposePairs(const std::byte* in, const Panel& panel, int tile_rows, std::byte* out) {
  std::byte group[kTileRows][kPadK * 2];
  for (int64_t k = 0; k < panel.k; k += kPadK, out += kPadK * tile_rows * 2) {
    Gather(in, panel, k, 2, group);
    for (int pair = 0; pair < kPadK / 2; ++pair) {
      for (int row = 0; row < tile_rows; ++row) {
        std::memcpy(out + (pair * tile_rows + row) * 4, &group[row][pair * 4], 4);
      }
    }
  }
}

}  // namespace fulcrum::cpu

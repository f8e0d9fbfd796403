// Groups of 16 k, whose rows are 16 or 32 bytes of the file each.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pack.h"

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

}  // namespace

void PackFp8Lines(const std::byte* in, const Panel& panel, int tile_rows, std::byte* out) {
  std::byte group[kTileRows][kPadK * 2];
  for (int64_t k = 0; k < panel.k; k += kPadK) {
    Gather(in, panel, k, 1, group);
    for (int lane = 0; lane < numerics::kExactLanes; ++lane, out += 4 * tile_rows) {
      const int first = numerics::LaneOrderK(lane * 4), second = numerics::LaneOrderK(lane * 4 + 2);
      for (int row = 0; row < tile_rows; ++row) {
        std::memcpy(out + Fp8LineByte(0, row), &group[row][first], 2);
        std::memcpy(out + Fp8LineByte(2, row), &group[row][second], 2);
      }
    }
  }
}

void PackBf16Lines(const std::byte* in, const Panel& panel, int tile_rows, std::byte* out) {
  std::byte group[kTileRows][kPadK * 2];
  for (int64_t k = 0; k < panel.k; k += kPadK) {
    Gather(in, panel, k, 2, group);
    for (int position = 0; position < kPadK; position += 2, out += 4 * tile_rows) {
      const int pair = numerics::LaneOrderK(position);
      for (int row = 0; row < tile_rows; ++row) {
        std::memcpy(out + row * 4, &group[row][pair * 2], 4);
      }
    }
  }
}

}  // namespace fulcrum::cpu

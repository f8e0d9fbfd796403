// Groups of 16 k, whose rows are 16 or 32 bytes of the file each.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pack.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/layout.h"

namespace fulcrum::cpu {
namespace {

static_assert(std::endian::native == std::endian::little);

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

// Four rows of four k pairs, a word a row, low bits first; then four pairs of four rows.
using Pairs = uint64_t[4];
void Transpose(Pairs& w) {
  constexpr uint64_t kEven = 0x0000ffff0000ffffu, kLow = 0xffffffffu;
  const auto even = [](uint64_t a, uint64_t b) { return (a & kEven) | (b & kEven) << 16; };
  const auto odd = [](uint64_t a, uint64_t b) { return (a >> 16 & kEven) | (b & ~kEven); };
  const uint64_t even01 = even(w[0], w[1]), even23 = even(w[2], w[3]);
  const uint64_t odd01 = odd(w[0], w[1]), odd23 = odd(w[2], w[3]);
  w[0] = (even01 & kLow) | even23 << 32;
  w[1] = (odd01 & kLow) | odd23 << 32;
  w[2] = even01 >> 32 | (even23 & ~kLow);
  w[3] = odd01 >> 32 | (odd23 & ~kLow);
}

}  // namespace

void PackFp8Lines(const std::byte* in, const Panel& panel, int tile_rows, std::byte* out) {
  // Lane l has the k pairs l and l + 4 of a group, a pair of four rows is 8 bytes of its line.
  static_assert(numerics::LaneOrderK(4) == 2 && numerics::LaneOrderK(6) == 10);
  static_assert(Fp8LineByte(0, 4) == 16 && Fp8LineByte(2, 0) == 8 && Fp8LineByte(0, 1) == 2);
  std::byte group[kTileRows][kPadK * 2];
  const int line = 4 * tile_rows;
  for (int64_t k = 0; k < panel.k; k += kPadK, out += numerics::kExactLanes * line) {
    Gather(in, panel, k, 1, group);
    for (int row = 0; row < tile_rows; row += kRowPad) {
      Pairs first, second;
      for (int i = 0; i < kRowPad; ++i) {
        std::memcpy(&first[i], group[row + i], 8);
        std::memcpy(&second[i], group[row + i] + 8, 8);
      }
      Transpose(first);
      Transpose(second);
      for (int lane = 0; lane < numerics::kExactLanes; ++lane) {
        std::byte* const to = out + lane * line + row * 4;
        std::memcpy(to, &first[lane], 8);
        std::memcpy(to + 8, &second[lane], 8);
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

// Q2_0 blocks: decode of rows and single weights, and the reference quantiser. Blocks are only
// 2-byte aligned, so the scale is read byte by byte.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/formats/q2_0.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/formats/bf16.h"

namespace fulcrum {
namespace {

constexpr int kScaleBytes = 2;

uint16_t ReadScale(std::span<const std::byte> block) {
  return static_cast<uint16_t>(std::to_integer<int>(block[0]) | std::to_integer<int>(block[1])
                                                                    << 8);
}

int CodeAt(std::span<const std::byte> block, int i) {
  return std::to_integer<int>(block[kScaleBytes + i / 4]) >> 2 * (i % 4) & 3;
}

std::span<const std::byte> BlockOf(std::span<const std::byte> row, int block, int64_t i) {
  const size_t bytes = Q2BlockBytes(block);
  return row.subspan(static_cast<size_t>(i / block) * bytes, bytes);
}

}  // namespace

void DecodeQ2Row(std::span<const std::byte> row, int block, std::span<float> out) {
  assert(out.size() % block == 0 && row.size() == out.size() / block * Q2BlockBytes(block));
  for (size_t first = 0; first < out.size(); first += block) {
    const std::span<const std::byte> bytes = BlockOf(row, block, static_cast<int64_t>(first));
    const float d = F16ToF32(ReadScale(bytes));
    for (int i = 0; i < block; ++i) {
      out[first + i] = static_cast<float>(CodeAt(bytes, i) - 1) * d;
    }
  }
}

int Q2Code(std::span<const std::byte> row, int block, int64_t i) {
  return CodeAt(BlockOf(row, block, i), static_cast<int>(i % block));
}

float Q2Scale(std::span<const std::byte> row, int block, int64_t i) {
  return F16ToF32(ReadScale(BlockOf(row, block, i)));
}

void EncodeQ2Row(std::span<const float> w, int block, std::span<std::byte> row) {
  assert(w.size() % block == 0 && row.size() == w.size() / block * Q2BlockBytes(block));
  const size_t block_bytes = Q2BlockBytes(block);
  for (size_t b = 0; b < w.size() / block; ++b) {
    const std::span<const float> values = w.subspan(b * block, block);
    const std::span<std::byte> bytes = row.subspan(b * block_bytes, block_bytes);
    float amax = 0;
    for (const float v : values) amax = std::max(amax, std::fabs(v));
    const uint16_t d = F32ToF16(amax);
    bytes[0] = static_cast<std::byte>(d & 0xff);
    bytes[1] = static_cast<std::byte>(d >> 8);
    std::fill(bytes.begin() + kScaleBytes, bytes.end(), std::byte{0});
    for (int i = 0; i < block; ++i) {
      // The ratio is within [-1, 1], so rounding it half away from zero is two comparisons.
      const float ratio = amax == 0 ? 0 : values[i] / amax;
      const int code = 1 + (ratio >= 0.5f) - (ratio <= -0.5f);
      bytes[kScaleBytes + i / 4] |= static_cast<std::byte>(code << 2 * (i % 4));
    }
  }
}

}  // namespace fulcrum

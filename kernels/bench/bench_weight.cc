// SPDX-License-Identifier: Apache-2.0
// Rows from a counter and a bit mix, eight bytes at a time.
#include "kernels/bench/bench_weight.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/formats/bf16.h"
#include "kernels/formats/q2_0.h"

namespace fulcrum::bench {
namespace {

uint64_t Mix(uint64_t z) {
  z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
  z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
  return z ^ z >> 32;
}

// Eight random bytes as weights: fp8 codes below the NaN code, bf16 near 2^-6.
uint64_t AsWeights(WeightFormat format, uint64_t bits) {
  if (format == WeightFormat::kFp8Block128) return bits & 0xbfbfbfbfbfbfbfbfu;
  if (format == WeightFormat::kBf16) return (bits & 0x80ff80ff80ff80ffu) | 0x3c003c003c003c00u;
  return bits;
}

}  // namespace

BenchWeight::BenchWeight(WeightSpec spec, uint64_t seed) : spec_(std::move(spec)), seed_(seed) {
  if (spec_.format != WeightFormat::kFp8Block128) return;
  scales_.resize(static_cast<size_t>(spec_.scale_rows() * spec_.scale_cols()));
  for (size_t i = 0; i < scales_.size(); ++i) scales_[i] = (1 + static_cast<float>(i % 16)) / 1024;
}

absl::Status BenchWeight::ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const {
  const auto row_bytes = static_cast<size_t>(spec_.row_bytes());
  for (int64_t r = 0; r < count; ++r) {
    std::byte* const at = out.data() + static_cast<size_t>(r) * row_bytes;
    const uint64_t start = (seed_ << 40) + static_cast<uint64_t>(row + r) * row_bytes;
    for (size_t i = 0; i < row_bytes; i += 8) {
      const uint64_t word = AsWeights(spec_.format, Mix((start + i) * 0x9e3779b97f4a7c15u));
      std::memcpy(at + i, &word, std::min<size_t>(8, row_bytes - i));
    }
    if (spec_.format != WeightFormat::kQ2_0) continue;
    const auto block_bytes = static_cast<size_t>(Q2BlockBytes(spec_.q2_block));
    for (size_t i = 0; i < row_bytes; i += block_bytes) {
      const auto d = static_cast<uint16_t>(0x2000 + Mix(start + i) % 0x400);  // near 2^-7
      std::memcpy(at + i, &d, 2);
    }
  }
  return absl::OkStatus();
}

std::vector<uint16_t> BenchActivations(int m, int64_t k, int64_t pitch) {
  std::vector<uint16_t> x(static_cast<size_t>(m * pitch));
  uint32_t state = 1;
  for (int row = 0; row < m; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      state = state * 1664525u + 1013904223u;
      x[static_cast<size_t>(row * pitch + i)] =
          F32ToBf16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
    }
  }
  return x;
}

}  // namespace fulcrum::bench

// Whether a weight is made of finite numbers, and what its scales are: CheckFinite and its parts
// (weight_source.h).
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/formats/q2_0.h"
#include "kernels/weights/row_pieces.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {
namespace {

constexpr char kExpected[] =
    "expected finite weights. Set allow_nan on the shard to load it as it is";

absl::Status NonFinite(const WeightSpec& spec, int64_t row, int64_t column, const char* what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: row %d, column %d holds %s; %s", spec.name,
                                                    row, column, what, kExpected));
}

absl::Status BadScale(const WeightSpec& spec, int64_t index, float scale) {
  const int64_t row = index / spec.scale_cols(), column = index % spec.scale_cols();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: block [%d, %d] of 128x128 (from row %d, column %d) has the scale %g%s; %s", spec.name,
      row, column, row * kFp8Block, column * kFp8Block, scale,
      std::isfinite(scale) ? ", whose product with the largest code, 448, is no finite F32" : "",
      kExpected));
}

// `least_normal`: of the type that the file stores.
void Count(float scale, float least_normal, ScaleCounts& counts) {
  ++counts.scales;
  counts.zero += scale == 0;
  counts.negative += scale < 0;
  counts.subnormal += scale != 0 && std::fabs(scale) < least_normal;
}

// First index of a value that matches, or -1. The first loop is branch-free so that it vectorises:
// almost every row is clean.
template <class T, class Match>
int64_t FindFirst(std::span<const std::byte> bytes, Match match) {
  const size_t count = bytes.size() / sizeof(T);
  const auto load = [&](size_t i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  };
  T any = 0;
  for (size_t i = 0; i < count; ++i) any = static_cast<T>(any | (match(load(i)) ? 1 : 0));
  if (any == 0) return -1;
  for (size_t i = 0; i < count; ++i) {
    if (match(load(i))) return static_cast<int64_t>(i);
  }
  return -1;
}

absl::Status CheckQ2Row(const WeightSpec& spec, int64_t row, std::span<const std::byte> bytes,
                        ScaleCounts* counts) {
  constexpr float kLeastNormalF16 = 0x1p-14f;
  const auto block_bytes = static_cast<size_t>(Q2BlockBytes(spec.q2_block));
  absl::Status first;
  for (size_t offset = 0; offset + block_bytes <= bytes.size(); offset += block_bytes) {
    uint16_t d;
    std::memcpy(&d, bytes.data() + offset, sizeof(d));
    if (counts != nullptr) Count(F16ToF32(d), kLeastNormalF16, *counts);
    if ((d & 0x7c00) != 0x7c00 || !first.ok()) continue;
    first = NonFinite(spec, row, static_cast<int64_t>(offset / block_bytes) * spec.q2_block,
                      "a Q2_0 block whose scale is NaN or infinite");
    if (counts == nullptr) break;
  }
  return first;
}

absl::Status CheckRow(const WeightSpec& spec, int64_t row, std::span<const std::byte> bytes,
                      ScaleCounts* counts) {
  int64_t at = -1;
  switch (spec.format) {
    case WeightFormat::kFp8Block128:
      at = FindFirst<uint8_t>(bytes, [](uint8_t c) { return IsE4m3Nan(c); });
      return at < 0 ? absl::OkStatus() : NonFinite(spec, row, at, "an E4M3 NaN code");
    case WeightFormat::kBf16:
      at = FindFirst<uint16_t>(bytes, [](uint16_t v) { return (v & 0x7f80) == 0x7f80; });
      return at < 0 ? absl::OkStatus() : NonFinite(spec, row, at, "a BF16 NaN or infinity");
    case WeightFormat::kQ2_0:
      return CheckQ2Row(spec, row, bytes, counts);
  }
  return absl::InternalError("weight format outside the table");
}

}  // namespace

absl::Status CheckFiniteScales(const WeightSource& source, ScaleCounts* counts) {
  const std::span<const float> scales = source.scales();
  absl::Status first;
  for (size_t i = 0; i < scales.size(); ++i) {
    if (counts != nullptr) Count(scales[i], std::numeric_limits<float>::min(), *counts);
    if (std::isfinite(scales[i] * kE4m3Largest) || !first.ok()) continue;
    first = BadScale(source.spec(), static_cast<int64_t>(i), scales[i]);
    if (counts == nullptr) break;
  }
  return first;
}

absl::Status CheckFinite(const WeightSource& source, ScaleCounts* counts) {
  absl::Status first = CheckFiniteScales(source, counts);
  // Only scales in the rows are worth reading on for.
  const WeightSpec& spec = source.spec();
  const bool to_the_end = counts != nullptr && spec.format == WeightFormat::kQ2_0;
  if (!first.ok() && !to_the_end) return first;
  const absl::Status read =
      ForEachPiece(source, [&](int64_t row, int64_t count, std::span<const std::byte> bytes) {
        const size_t row_bytes = bytes.size() / static_cast<size_t>(count);
        for (int64_t i = 0; i < count; ++i) {
          const auto one = bytes.subspan(static_cast<size_t>(i) * row_bytes, row_bytes);
          first.Update(CheckRow(spec, row + i, one, counts));
          if (!first.ok() && !to_the_end) return first;
        }
        return absl::OkStatus();
      });
  source.ReleasePages();
  return read.ok() ? first : read;
}

}  // namespace fulcrum

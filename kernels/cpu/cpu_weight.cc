// Repacking of file rows into the resident layout, a block of 128 rows at a time, and the checksum.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_weight.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/pack.h"
#include "kernels/formats/q2_0.h"

namespace fulcrum::cpu {
namespace {

int64_t ScaleOffset(const WeightSpec& spec) {
  switch (spec.format) {
    case WeightFormat::kFp8Block128:
      return RoundUp(TileLayout(spec).elements(), 64);
    case WeightFormat::kQ2_0:
      return ChunkLayout(spec).scale_offset();
    case WeightFormat::kBf16:
      break;
  }
  return TileLayout(spec).elements() * 2;
}

bool HasE4m3Nan(const std::byte* codes, int64_t count) {
  // Branch-free so that the compiler vectorises it: the pass must keep up with the file.
  unsigned found = 0;
  for (int64_t i = 0; i < count; ++i) {
    found |= static_cast<unsigned>((std::to_integer<unsigned>(codes[i]) & 0x7fu) == 0x7fu);
  }
  return found != 0;
}

}  // namespace

int64_t CpuWeight::Bytes(const WeightSpec& spec) {
  int64_t scales = 0;
  if (spec.format == WeightFormat::kFp8Block128) scales = spec.scale_rows() * spec.scale_cols() * 4;
  if (spec.format == WeightFormat::kQ2_0) scales = spec.n * (spec.k / spec.q2_block) * 2;
  return ScaleOffset(spec) + scales;
}

CpuWeight::CpuWeight(WeightSpec spec, HostBuffer buffer)
    : ResidentWeight(std::move(spec), 0), buffer_(std::move(buffer)) {
  resident_bytes_ = Bytes(spec_);
  scale_offset_ = ScaleOffset(spec_);
}

absl::StatusOr<std::shared_ptr<CpuWeight>> CpuWeight::Load(const WeightSource& source) {
  const WeightSpec& spec = source.spec();
  if (spec.n < 1 || spec.k < 1 ||
      (spec.format == WeightFormat::kQ2_0 && spec.k % spec.q2_block != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, ": cannot load a weight with N = ", spec.n, ", K = ", spec.k,
                     "; both must be at least 1, and K of q2_0 a "
                     "multiple of its block"));
  }
  // The arms load whole vectors: room for one beyond the end.
  absl::StatusOr<HostBuffer> buffer = HostBuffer::Make(static_cast<size_t>(Bytes(spec)) + 64);
  if (!buffer.ok()) {
    return absl::Status(buffer.status().code(),
                        absl::StrCat(spec.name, ": ", buffer.status().message()));
  }
  std::shared_ptr<CpuWeight> weight(new CpuWeight(spec, *std::move(buffer)));
  if (absl::Status status = weight->Pack(source); !status.ok()) return status;
  return weight;
}

absl::Status CpuWeight::Pack(const WeightSource& source) {
  if (spec_.format == WeightFormat::kFp8Block128) {
    const std::span<const float> scales = source.scales();
    const auto expected = static_cast<size_t>(spec_.scale_rows() * spec_.scale_cols());
    if (scales.size() != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(spec_.name, ": ", scales.size(), " block scales, expected ", expected));
    }
    std::memcpy(buffer_.data() + scale_offset_, scales.data(), scales.size_bytes());
  }
  const int64_t row_bytes = spec_.row_bytes();
  std::vector<std::byte> piece(static_cast<size_t>(kBlockRows * row_bytes));
  for (int64_t row = 0; row < spec_.n; row += kBlockRows) {
    const auto count = static_cast<int>(std::min<int64_t>(kBlockRows, spec_.n - row));
    const std::span<std::byte> rows(piece.data(), static_cast<size_t>(count * row_bytes));
    if (absl::Status status = source.ReadRows(row, count, rows); !status.ok()) return status;
    if (spec_.format == WeightFormat::kQ2_0) {
      PackChunks(row, rows.data(), count);
    } else {
      PackTiles(row / kBlockRows, rows.data(), count);
    }
    if (spec_.format == WeightFormat::kFp8Block128) {
      has_nan_ = has_nan_ || HasE4m3Nan(rows.data(), count * row_bytes);
    }
    if (row / kBlockRows % 16 == 15) source.ReleasePages();
  }
  source.ReleasePages();
  return absl::OkStatus();
}

void CpuWeight::PackTiles(int64_t block, const std::byte* rows, int row_count) {
  const TileLayout layout(spec_);
  const int64_t size = spec_.format == WeightFormat::kBf16 ? 2 : 1;
  const int64_t row_bytes = spec_.row_bytes();
  for (int64_t segment = 0; segment < layout.segments; ++segment) {
    const int64_t first_k = segment * layout.segment_k;
    for (int tile = 0; tile < layout.BlockTiles(block); ++tile) {
      const int tile_rows = layout.RowsOfTile(block, tile);
      std::byte* const out = buffer_.data() + layout.Offset(block, segment, tile) * size;
      const std::byte* const in = rows + tile * kTileRows * row_bytes + first_k * size;
      const Panel panel = {.row_bytes = row_bytes,
                           .rows = std::min(tile_rows, row_count - tile * kTileRows),
                           .k = std::min(layout.SegmentK(segment), spec_.k - first_k)};
      if (size == 1) {
        PackFp8Lines(in, panel, tile_rows, out);
      } else {
        PackBf16Lines(in, panel, tile_rows, out);
      }
    }
  }
}

void CpuWeight::PackChunks(int64_t first_row, const std::byte* rows, int row_count) {
  const ChunkLayout layout(spec_);
  const int64_t row_bytes = spec_.row_bytes();
  const int64_t chunks_per_block = spec_.q2_block / numerics::kQ2ChunkK;
  const int64_t block_bytes = Q2BlockBytes(spec_.q2_block);
  for (int r = 0; r < row_count; ++r) {
    const std::byte* const in = rows + r * row_bytes;
    std::byte* codes = buffer_.data() + (first_row + r) * layout.row_code_bytes();
    std::byte* const scales =
        buffer_.data() + scale_offset_ + (first_row + r) * layout.scales_per_row * 2;
    for (int64_t i = 0; i < layout.scales_per_row; ++i) {
      std::memcpy(scales + i * 2, in + i * block_bytes, 2);
    }
    for (int64_t vector = 0; vector < layout.vectors(); ++vector) {
      const int lanes = layout.LanesOf(vector);
      for (int lane = 0; lane < lanes; ++lane) {
        const int64_t chunk = vector * ChunkLayout::kLanes + lane;
        const std::byte* const from =
            in + chunk / chunks_per_block * block_bytes + 2 + chunk % chunks_per_block * 8;
        std::memcpy(codes + lane * 4, from, 4);
        std::memcpy(codes + (lanes + lane) * 4, from + 4, 4);
      }
      codes += lanes * 8;
    }
  }
}

absl::StatusOr<uint64_t> CpuWeight::Checksum() const {
  // Every step maps the running value one-to-one for fixed input, and every input one-to-one for a
  // fixed running value, so one changed word always changes the result. Eight chains hide the
  // multiplication's latency.
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  std::array<uint64_t, 8> chain;
  for (size_t i = 0; i < chain.size(); ++i) chain[i] = i + 1;
  const auto mix = [](uint64_t value, uint64_t word) {
    value = (value ^ word) * kOdd;
    return value ^ value >> 32;
  };
  const uint8_t* at = data();
  int64_t left = resident_bytes_;
  for (; left >= 64; left -= 64, at += 64) {
    std::array<uint64_t, 8> words;
    std::memcpy(words.data(), at, 64);
    for (size_t i = 0; i < 8; ++i) chain[i] = mix(chain[i], words[i]);
  }
  std::array<uint64_t, 8> rest{};
  std::memcpy(rest.data(), at, static_cast<size_t>(left));
  uint64_t sum = static_cast<uint64_t>(resident_bytes_);
  for (size_t i = 0; i < 8; ++i) sum = mix(sum, mix(chain[i], rest[i]));
  return sum;
}

absl::Status CpuWeight::FlipBit(int64_t byte_offset, int bit) {
  if (byte_offset < 0 || byte_offset >= resident_bytes_ || bit < 0 || bit > 7) {
    return absl::OutOfRangeError(absl::StrCat(spec_.name, ": bit ", bit, " of byte ", byte_offset,
                                              "; the weight has ", resident_bytes_, " bytes"));
  }
  buffer_.data()[byte_offset] ^= static_cast<std::byte>(1 << bit);
  return absl::OkStatus();
}

}  // namespace fulcrum::cpu

// Sizes of a weight, its content hash, and the finiteness check: what can be said of any source
// through ReadRows and scales() alone. Both passes read the rows once, in pieces.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/weight_source.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/strings/str_format.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/formats/q2_0.h"

namespace fulcrum {
namespace {

static_assert(std::endian::native == std::endian::little,
              "weights are hashed and read as little-endian bytes in place");

constexpr int64_t kPieceBytes = 4 << 20;

// Calls visit(first_row, rows, bytes) over all rows in ascending order.
template <class Visit>
absl::Status ForEachPiece(const WeightSource& source, Visit visit) {
  const WeightSpec& spec = source.spec();
  const int64_t row_bytes = spec.row_bytes();
  if (spec.n <= 0 || row_bytes <= 0) return absl::OkStatus();
  const int64_t rows = std::clamp<int64_t>(kPieceBytes / row_bytes, 1, spec.n);
  std::vector<std::byte> buffer(static_cast<size_t>(rows * row_bytes));
  for (int64_t row = 0; row < spec.n; row += rows) {
    const int64_t count = std::min(rows, spec.n - row);
    const std::span<std::byte> piece(buffer.data(), static_cast<size_t>(count * row_bytes));
    if (absl::Status s = source.ReadRows(row, count, piece); !s.ok()) return s;
    if (absl::Status s = visit(row, count, std::span<const std::byte>(piece)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status NonFinite(const WeightSpec& spec, int64_t row, int64_t column, const char* what) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: row %d, column %d holds %s; expected finite weights. Set allow_nan on the shard to load "
      "it as it is",
      spec.name, row, column, what));
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

absl::Status CheckRow(const WeightSpec& spec, int64_t row, std::span<const std::byte> bytes) {
  int64_t at = -1;
  switch (spec.format) {
    case WeightFormat::kFp8Block128:
      at = FindFirst<uint8_t>(bytes, [](uint8_t c) { return IsE4m3Nan(c); });
      return at < 0 ? absl::OkStatus() : NonFinite(spec, row, at, "an E4M3 NaN code");
    case WeightFormat::kBf16:
      at = FindFirst<uint16_t>(bytes, [](uint16_t v) { return (v & 0x7f80) == 0x7f80; });
      return at < 0 ? absl::OkStatus() : NonFinite(spec, row, at, "a BF16 NaN or infinity");
    case WeightFormat::kQ2_0: {
      const size_t block_bytes = static_cast<size_t>(Q2BlockBytes(spec.q2_block));
      for (size_t offset = 0; offset + block_bytes <= bytes.size(); offset += block_bytes) {
        uint16_t d;
        std::memcpy(&d, bytes.data() + offset, sizeof(d));
        if ((d & 0x7c00) != 0x7c00) continue;
        return NonFinite(spec, row, static_cast<int64_t>(offset / block_bytes) * spec.q2_block,
                         "a Q2_0 block whose scale is NaN or infinite");
      }
      return absl::OkStatus();
    }
  }
  return absl::InternalError("weight format outside the table");
}

struct DigestDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

int64_t WeightSpec::row_bytes() const {
  switch (format) {
    case WeightFormat::kFp8Block128:
      return k;
    case WeightFormat::kBf16:
      return 2 * k;
    case WeightFormat::kQ2_0:
      return k / q2_block * Q2BlockBytes(q2_block);
  }
  return 0;
}

int64_t WeightSpec::bytes() const {
  const int64_t scale_bytes =
      format == WeightFormat::kFp8Block128 ? 4 * scale_rows() * scale_cols() : 0;
  return n * row_bytes() + scale_bytes;
}

absl::Status ContentHash(const WeightSource& source, std::string* hex) {
  const WeightSpec& spec = source.spec();
  const std::unique_ptr<EVP_MD_CTX, DigestDeleter> context(EVP_MD_CTX_new());
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("SHA-256 is not available from the crypto library");
  }
  const auto update = [&](const void* data, size_t size) {
    return EVP_DigestUpdate(context.get(), data, size) == 1
               ? absl::OkStatus()
               : absl::InternalError("the crypto library failed while hashing");
  };
  // The header fixes where rows end and scales begin, so no two contents share an input. The block
  // size means something for q2_0 only.
  const int q2_block = spec.format == WeightFormat::kQ2_0 ? spec.q2_block : 0;
  const std::string header = absl::StrFormat(
      "fulcrum weight 1\n%s %d %d %d\n", std::string(Name(spec.format)), spec.n, spec.k, q2_block);
  if (absl::Status s = update(header.data(), header.size()); !s.ok()) return s;
  absl::Status status =
      ForEachPiece(source, [&](int64_t, int64_t, std::span<const std::byte> bytes) {
        return update(bytes.data(), bytes.size());
      });
  if (!status.ok()) return status;
  const std::span<const float> scales = source.scales();
  if (absl::Status s = update(scales.data(), scales.size_bytes()); !s.ok()) return s;
  source.ReleasePages();

  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  if (EVP_DigestFinal_ex(context.get(), digest.data(), &size) != 1) {
    return absl::InternalError("the crypto library failed to finish a hash");
  }
  hex->clear();
  for (unsigned int i = 0; i < size; ++i) absl::StrAppendFormat(hex, "%02x", digest[i]);
  return absl::OkStatus();
}

absl::Status CheckFiniteScales(const WeightSource& source) {
  const WeightSpec& spec = source.spec();
  const std::span<const float> scales = source.scales();
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isfinite(scales[i])) continue;
    const int64_t row = static_cast<int64_t>(i) / spec.scale_cols() * kFp8Block;
    const int64_t column = static_cast<int64_t>(i) % spec.scale_cols() * kFp8Block;
    return NonFinite(spec, row, column, "a 128x128 block whose scale is NaN or infinite");
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const WeightSource& source) {
  if (absl::Status s = CheckFiniteScales(source); !s.ok()) return s;
  const WeightSpec& spec = source.spec();
  absl::Status status =
      ForEachPiece(source, [&](int64_t row, int64_t count, std::span<const std::byte> bytes) {
        const size_t row_bytes = bytes.size() / static_cast<size_t>(count);
        for (int64_t i = 0; i < count; ++i) {
          const auto one = bytes.subspan(static_cast<size_t>(i) * row_bytes, row_bytes);
          if (absl::Status s = CheckRow(spec, row + i, one); !s.ok()) return s;
        }
        return absl::OkStatus();
      });
  if (status.ok()) source.ReleasePages();
  return status;
}

}  // namespace fulcrum

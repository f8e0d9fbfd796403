// Sizes of a weight, what is checked before its rows are read, and its content hash. The check of
// the rows is finite_check.cc's.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/weight_source.h"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <memory>

#include "absl/strings/str_format.h"
#include "kernels/formats/q2_0.h"
#include "kernels/weights/row_pieces.h"

namespace fulcrum {
namespace {

static_assert(std::endian::native == std::endian::little,
              "weights are hashed and read as little-endian bytes in place");

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

absl::Status CheckSize(const WeightSpec& spec) {
  if (spec.n >= 1 && spec.k >= 1 && spec.n <= kMaxWeightN && spec.k <= kMaxWeightK) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: a matrix of [%d, %d]; served are [N, K] with N of 1 to %d and K of 1 to %d, a larger "
      "one in slices",
      spec.name, spec.n, spec.k, kMaxWeightN, kMaxWeightK));
}

absl::Status CheckServable(const WeightSource& source, bool allow_nan) {
  if (absl::Status s = CheckSize(source.spec()); !s.ok()) return s;
  return allow_nan ? absl::OkStatus() : CheckFiniteScales(source);
}

bool IsContentHash(std::string_view text) {
  constexpr size_t kDigits = 64;
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace fulcrum

// Plain loops in the pinned orders of order.h, nothing clever that would have to be trusted. Rows
// are read and decoded here once; the formats' decoders and one tensor-core step are elsewhere.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/oracle.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/formats/q2_0.h"
#include "kernels/formats/q8_activation.h"
#include "kernels/numerics/order.h"
#include "kernels/numerics/tensor_core.h"

namespace fulcrum::numerics {
namespace {

std::vector<uint16_t> PadToBlocks(std::span<const uint16_t> values) {
  std::vector<uint16_t> padded(static_cast<size_t>(Blocks(values.size()) * kBlockK), 0);
  std::copy(values.begin(), values.end(), padded.begin());
  return padded;
}

float ScaleOf(std::span<const float> scales, int64_t block) {
  return scales.empty() ? 1.0f : scales[static_cast<size_t>(block)];
}

// The end of every result: -0 becomes +0, and there is one NaN.
float Finish(float sum) { return CanonicalF32(sum + 0.0f); }

float AddSegments(std::span<const float> sums) {
  float total = sums[0];
  for (const float sum : sums.subspan(1)) total = total + sum;
  return Finish(total);
}

// The outer order that mma and blockfold share: one fold of each block's inner sum.
float FoldBlocks(std::span<const float> inner, std::span<const float> scales, int64_t k) {
  std::vector<float> segments(static_cast<size_t>(Segments(k)), 0.0f);
  for (int64_t block = 0; block < Blocks(k); ++block) {
    float& outer = segments[static_cast<size_t>(block / SegmentBlocks(k))];
    outer = std::fma(ScaleOf(scales, block), inner[static_cast<size_t>(block)], outer);
  }
  return AddSegments(segments);
}

absl::Status CheckRequest(NumericsClass numerics, const WeightSource& source, int64_t n_begin,
                          int64_t n_count, size_t x_size, int64_t m) {
  const WeightSpec& spec = source.spec();
  if (numerics == NumericsClass::kW8A8 ||
      (numerics != NumericsClass::kExact && spec.format == WeightFormat::kQ2_0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, ": class ", std::string(Name(numerics)), " has no reference for ",
                     std::string(Name(spec.format)), " weights"));
  }
  if (spec.k < 1 || n_begin < 0 || n_count < 0 || n_begin > spec.n - n_count) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, ": rows [", n_begin, ", ", n_begin + n_count,
                     ") of a weight with N = ", spec.n, ", K = ", spec.k));
  }
  if (m < 0 || x_size != static_cast<size_t>(m * spec.k)) {
    return absl::InvalidArgumentError(absl::StrCat(
        spec.name, ": ", x_size, " activations, expected ", m, " rows of K = ", spec.k));
  }
  return absl::OkStatus();
}

// One weight row as read from the source, with what its format needs to use it.
class Row {
 public:
  Row(const WeightSource& source, int64_t n) : spec_(source.spec()), bytes_(spec_.row_bytes()) {
    status_ = source.ReadRows(n, 1, bytes_);
    if (!status_.ok() || spec_.format == WeightFormat::kQ2_0) return;
    bf16_.resize(static_cast<size_t>(spec_.k));
    if (spec_.format == WeightFormat::kBf16) {
      std::memcpy(bf16_.data(), bytes_.data(), bytes_.size());
      return;
    }
    for (size_t k = 0; k < bf16_.size(); ++k) {
      bf16_[k] = E4m3ToBf16(std::to_integer<uint8_t>(bytes_[k]));
    }
    scales_ = source.scales().subspan(static_cast<size_t>(n / kFp8Block * spec_.scale_cols()),
                                      static_cast<size_t>(spec_.scale_cols()));
  }

  const absl::Status& status() const { return status_; }

  float Dot(NumericsClass numerics, std::span<const uint16_t> x) const {
    if (spec_.format == WeightFormat::kQ2_0) return ExactQ2Dot(bytes_, spec_.q2_block, x);
    switch (numerics) {
      case NumericsClass::kMma:
        return MmaDot(bf16_, scales_, x);
      case NumericsClass::kBlockfold:
        return BlockfoldDot(bf16_, scales_, x);
      default:
        return ExactDot(bf16_, scales_, x);
    }
  }

  // The weights as the mathematical values they stand for; exact in float64.
  std::vector<double> Dequantised() const {
    std::vector<double> values(static_cast<size_t>(spec_.k));
    if (spec_.format == WeightFormat::kQ2_0) {
      std::vector<float> decoded(values.size());
      DecodeQ2Row(bytes_, spec_.q2_block, decoded);
      std::copy(decoded.begin(), decoded.end(), values.begin());
      return values;
    }
    for (size_t k = 0; k < values.size(); ++k) {
      values[k] = static_cast<double>(Bf16ToF32(bf16_[k])) *
                  ScaleOf(scales_, static_cast<int64_t>(k) / kBlockK);
    }
    return values;
  }

 private:
  const WeightSpec& spec_;
  std::vector<std::byte> bytes_;
  std::vector<uint16_t> bf16_;
  std::span<const float> scales_;
  absl::Status status_;
};

}  // namespace

float ExactDot(std::span<const uint16_t> w, std::span<const float> scales,
               std::span<const uint16_t> x) {
  assert(w.size() == x.size() && !w.empty());
  const auto k_size = static_cast<int64_t>(w.size());
  const int64_t segment_k = SegmentBlocks(k_size) * kBlockK;
  const std::vector<uint16_t> weights = PadToBlocks(w), activations = PadToBlocks(x);
  const auto padded_k = static_cast<int64_t>(weights.size());

  std::vector<float> segments;
  for (int64_t begin = 0; begin < padded_k; begin += segment_k) {
    std::array<float, kExactLanes> lane{};
    for (int64_t k = begin; k < std::min(begin + segment_k, padded_k); ++k) {
      const float xs =
          Bf16ToF32(activations[static_cast<size_t>(k)]) * ScaleOf(scales, k / kBlockK);
      float& acc = lane[static_cast<size_t>(ExactLane(k))];
      acc = std::fma(Bf16ToF32(weights[static_cast<size_t>(k)]), xs, acc);
    }
    segments.push_back((lane[0] + lane[2]) + (lane[1] + lane[3]));
  }
  return AddSegments(segments);
}

float MmaDot(std::span<const uint16_t> w, std::span<const float> scales,
             std::span<const uint16_t> x) {
  assert(w.size() == x.size() && !w.empty());
  const std::vector<uint16_t> weights = PadToBlocks(w), activations = PadToBlocks(x);
  std::vector<float> inner;
  for (size_t block = 0; block < weights.size(); block += kBlockK) {
    uint32_t acc = 0;
    for (size_t k = block; k < block + kBlockK; k += 16) {
      acc = TensorCoreStep(&weights[k], &activations[k], acc);
    }
    inner.push_back(std::bit_cast<float>(acc));
  }
  return FoldBlocks(inner, scales, static_cast<int64_t>(w.size()));
}

float BlockfoldDot(std::span<const uint16_t> w, std::span<const float> scales,
                   std::span<const uint16_t> x) {
  assert(w.size() == x.size() && !w.empty());
  const std::vector<uint16_t> weights = PadToBlocks(w), activations = PadToBlocks(x);
  std::vector<float> inner;
  for (size_t block = 0; block < weights.size(); block += kBlockK) {
    float acc = 0;
    for (size_t at = 0; at < kBlockK; at += 2) {
      const size_t even =
          block + at / 16 * 16 + static_cast<size_t>(LaneOrderK(static_cast<int>(at % 16)));
      acc = std::fma(Bf16ToF32(weights[even + 1]), Bf16ToF32(activations[even + 1]), acc);
      acc = std::fma(Bf16ToF32(weights[even]), Bf16ToF32(activations[even]), acc);
    }
    inner.push_back(acc);
  }
  return FoldBlocks(inner, scales, static_cast<int64_t>(w.size()));
}

float ExactQ2Dot(std::span<const std::byte> row, int block, std::span<const uint16_t> x) {
  assert(!x.empty() && x.size() % static_cast<size_t>(block) == 0);
  const size_t chunks = x.size() / kQ2ChunkK;
  std::vector<int8_t> q(x.size());
  std::vector<float> d8(chunks);
  QuantizeQ8Row(x, q, d8);

  std::array<float, kQ2Threads> v{};
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const auto first = static_cast<int64_t>(chunk) * kQ2ChunkK;
    int sum = 0;
    for (int64_t k = first; k < first + kQ2ChunkK; ++k) {
      sum += (Q2Code(row, block, k) - 1) * q[static_cast<size_t>(k)];
    }
    const float d = Q2Scale(row, block, first) * d8[chunk];
    float& acc = v[chunk % kQ2Threads];
    acc = std::fma(d, static_cast<float>(sum), acc);
  }
  std::array<float, 32> lane{};
  for (size_t l = 0; l < 32; ++l) lane[l] = ((v[l] + v[32 + l]) + v[64 + l]) + v[96 + l];
  for (size_t stride = 16; stride > 0; stride /= 2) {
    for (size_t l = 0; l < stride; ++l) lane[l] = lane[l] + lane[l + stride];
  }
  return Finish(lane[0]);
}

absl::StatusOr<float> ReferenceElement(NumericsClass numerics, const WeightSource& source,
                                       int64_t n, std::span<const uint16_t> x) {
  float out = 0;
  absl::Status status = ReferenceProduct(numerics, source, n, 1, x, 1, std::span(&out, 1));
  if (!status.ok()) return status;
  return out;
}

absl::Status ReferenceProduct(NumericsClass numerics, const WeightSource& source, int64_t n_begin,
                              int64_t n_count, std::span<const uint16_t> x, int m,
                              std::span<float> out) {
  if (absl::Status s = CheckRequest(numerics, source, n_begin, n_count, x.size(), m); !s.ok()) {
    return s;
  }
  assert(static_cast<int64_t>(out.size()) == m * n_count);
  const auto k = static_cast<size_t>(source.spec().k);
  for (int64_t i = 0; i < n_count; ++i) {
    const Row row(source, n_begin + i);
    if (!row.status().ok()) return row.status();
    for (int r = 0; r < m; ++r) {
      out[static_cast<size_t>(r * n_count + i)] = row.Dot(numerics, x.subspan(r * k, k));
    }
  }
  return absl::OkStatus();
}

absl::Status Float64Product(const WeightSource& source, int64_t n_begin, int64_t n_count,
                            std::span<const uint16_t> x, int m, std::span<double> out) {
  if (absl::Status s = CheckRequest(NumericsClass::kExact, source, n_begin, n_count, x.size(), m);
      !s.ok()) {
    return s;
  }
  assert(static_cast<int64_t>(out.size()) == m * n_count);
  const auto k = static_cast<size_t>(source.spec().k);
  for (int64_t i = 0; i < n_count; ++i) {
    const Row row(source, n_begin + i);
    if (!row.status().ok()) return row.status();
    const std::vector<double> weights = row.Dequantised();
    for (int r = 0; r < m; ++r) {
      double sum = 0;
      for (size_t j = 0; j < k; ++j) sum += weights[j] * Bf16ToF32(x[r * k + j]);
      out[static_cast<size_t>(r * n_count + i)] = sum;
    }
  }
  return absl::OkStatus();
}

}  // namespace fulcrum::numerics

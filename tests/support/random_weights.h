// Weights and activations made in memory for tests: a WeightSource over given bytes, and seeded
// generators, friendly and hostile. The same seed gives the same values on every platform (no
// standard-library distributions). Known-bad variants of a product are mutations.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/formats/q2_0.h"
#include "kernels/types.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::test {

// A small counter-based generator: state + constant, then a bit mix.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x853c49e6748fea9bu) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
    return z ^ z >> 32;
  }
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // [0, 1)
  // Mean 0, variance 1: the sum of 12 uniforms, near enough to a Gaussian for activations.
  double Gauss() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += Uniform();
    return sum;
  }

 private:
  uint64_t state_;
};

// A weight that lives in memory. `rows` are n * row_bytes bytes in the file's format; `scales` are
// the fp8 grid, empty for other formats. Both may be changed in place to build a known-bad twin.
class MemoryWeight : public WeightSource {
 public:
  MemoryWeight(WeightSpec spec, std::vector<std::byte> rows, std::vector<float> scales = {})
      : spec_(std::move(spec)), rows_(std::move(rows)), scales_(std::move(scales)) {}

  const WeightSpec& spec() const override { return spec_; }
  std::span<const float> scales() const override { return scales_; }
  std::string origin() const override { return absl::StrCat("memory:", spec_.name); }

  absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
    const int64_t row_bytes = spec_.row_bytes();
    if (row < 0 || count < 0 || row + count > spec_.n ||
        static_cast<int64_t>(out.size()) != count * row_bytes) {
      return absl::OutOfRangeError(absl::StrCat(origin(), ": rows [", row, ", ", row + count,
                                                ") of ", spec_.n, " into ", out.size(), " bytes"));
    }
    std::copy_n(rows_.begin() + row * row_bytes, out.size(), out.begin());
    return absl::OkStatus();
  }

  std::vector<std::byte>& mutable_rows() { return rows_; }
  std::vector<float>& mutable_scales() { return scales_; }
  std::span<const std::byte> rows() const { return rows_; }

 private:
  WeightSpec spec_;
  std::vector<std::byte> rows_;
  std::vector<float> scales_;
};

enum class WeightKind {
  kGaussian,        // a checkpoint's bell curve, encoded by the format's own quantiser
  kUniformCodes,    // every finite code equally often, scales near 1e-2
  kSubnormalCodes,  // fp8: codes below 2^-6; bf16: subnormals; q2_0: FP16 subnormal scales
  kZeroBlocks,      // half of the scale blocks hold nothing but zeros, of both signs
  kNegativeScales,  // scales of both signs (bf16: as kGaussian)
  kWideRange,       // scales from 2^-40 to 2^40 (q2_0: FP16's range), bf16 values alike
};
inline constexpr WeightKind kAllWeightKinds[] = {
    WeightKind::kGaussian,   WeightKind::kUniformCodes,   WeightKind::kSubnormalCodes,
    WeightKind::kZeroBlocks, WeightKind::kNegativeScales, WeightKind::kWideRange};
inline std::string Name(WeightKind kind) {
  static constexpr const char* kNames[] = {"gaussian",    "uniform_codes",   "subnormal_codes",
                                           "zero_blocks", "negative_scales", "wide_range"};
  return kNames[static_cast<int>(kind)];
}

// 2^e with a random 24-bit significand, e uniform in [lo, hi].
inline float RandomFloat(Rng& rng, int lo, int hi) {
  return std::ldexp(static_cast<float>(1 + rng.Uniform()),
                    lo + static_cast<int>(rng.Below(hi - lo + 1)));
}

inline float RandomScale(WeightKind kind, Rng& rng) {
  switch (kind) {
    case WeightKind::kWideRange:
      return RandomFloat(rng, -40, 40);
    case WeightKind::kNegativeScales:
      return RandomFloat(rng, -8, -6) * (rng.Below(2) ? 1 : -1);
    default:
      return RandomFloat(rng, -8, -6);
  }
}

inline MemoryWeight RandomFp8(int64_t n, int64_t k, WeightKind kind, uint64_t seed) {
  Rng rng(seed);
  WeightSpec spec{
      .name = "fp8_" + Name(kind), .format = WeightFormat::kFp8Block128, .n = n, .k = k};
  std::vector<uint8_t> codes(n * k);
  std::vector<float> scales(spec.scale_rows() * spec.scale_cols());
  if (kind == WeightKind::kGaussian) {
    std::vector<float> w(n * k);
    for (float& v : w) v = static_cast<float>(rng.Gauss() * 0.02);
    EncodeFp8Block128(w, n, k, codes, scales);
  } else {
    for (float& s : scales) s = RandomScale(kind, rng);
    for (int64_t i = 0; i < n * k; ++i) {
      const bool zero = kind == WeightKind::kZeroBlocks && (i / k / 128 + i % k / 128) % 2 == 0;
      const auto sign = static_cast<uint8_t>(rng.Below(2) << 7);
      const int64_t codes_of_kind = zero ? 1 : kind == WeightKind::kSubnormalCodes ? 8 : 127;
      codes[i] = static_cast<uint8_t>(sign | rng.Below(codes_of_kind));  // 127 is the NaN code
    }
  }
  std::vector<std::byte> rows(codes.size());
  std::memcpy(rows.data(), codes.data(), codes.size());
  return MemoryWeight(std::move(spec), std::move(rows), std::move(scales));
}

inline MemoryWeight RandomBf16(int64_t n, int64_t k, WeightKind kind, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint16_t> values(n * k);
  for (int64_t i = 0; i < n * k; ++i) {
    const bool zero = kind == WeightKind::kZeroBlocks && i % k / 128 % 2 == 0;
    const auto sign = static_cast<uint16_t>(rng.Below(2) << 15);
    if (zero) {
      values[i] = sign;
    } else if (kind == WeightKind::kSubnormalCodes) {
      values[i] = static_cast<uint16_t>(sign | rng.Below(128));
    } else if (kind == WeightKind::kWideRange) {
      values[i] = static_cast<uint16_t>(sign | F32ToBf16(RandomFloat(rng, -40, 40)));
    } else if (kind == WeightKind::kUniformCodes) {
      values[i] = static_cast<uint16_t>(sign | (0x3c00 + rng.Below(0x400)));
    } else {
      values[i] = F32ToBf16(static_cast<float>(rng.Gauss() * 0.02));
    }
  }
  std::vector<std::byte> rows(values.size() * 2);
  std::memcpy(rows.data(), values.data(), rows.size());
  return MemoryWeight({.name = "bf16_" + Name(kind), .format = WeightFormat::kBf16, .n = n, .k = k},
                      std::move(rows));
}

// k must be a multiple of `block`. Codes are uniform over 0..3 but for kGaussian, whose quantiser
// never writes code 3.
inline MemoryWeight RandomQ2(int64_t n, int64_t k, WeightKind kind, uint64_t seed, int block = 64) {
  Rng rng(seed);
  const int block_bytes = Q2BlockBytes(block);
  std::vector<std::byte> rows(n * (k / block) * block_bytes);
  if (kind == WeightKind::kGaussian) {
    const int64_t row_bytes = k / block * block_bytes;
    std::vector<float> w(k);
    for (int64_t row = 0; row < n; ++row) {
      for (float& v : w) v = static_cast<float>(rng.Gauss() * 0.02);
      EncodeQ2Row(w, block, std::span(rows).subspan(row * row_bytes, row_bytes));
    }
  } else {
    for (int64_t b = 0; b < n * (k / block); ++b) {
      std::byte* const at = rows.data() + b * block_bytes;
      const bool zero = kind == WeightKind::kZeroBlocks && b % 2 == 0;
      uint16_t d = 0;
      if (kind == WeightKind::kSubnormalCodes) {
        d = static_cast<uint16_t>(rng.Below(2) << 15 | (1 + rng.Below(0x3ff)));
      } else if (kind == WeightKind::kWideRange) {
        d = static_cast<uint16_t>(rng.Below(0x7c00));
      } else {
        d = F32ToF16(RandomScale(kind, rng));
      }
      std::memcpy(at, &d, 2);
      for (int i = 2; i < block_bytes; ++i) {
        at[i] = zero ? std::byte{0x55} : static_cast<std::byte>(rng.Below(256));
      }
    }
  }
  return MemoryWeight({.name = absl::StrCat("q2_0_", block, "_", Name(kind)),
                       .format = WeightFormat::kQ2_0,
                       .n = n,
                       .k = k,
                       .q2_block = block},
                      std::move(rows));
}

inline MemoryWeight RandomWeight(WeightFormat format, int64_t n, int64_t k, WeightKind kind,
                                 uint64_t seed, int q2_block = 64) {
  switch (format) {
    case WeightFormat::kFp8Block128:
      return RandomFp8(n, k, kind, seed);
    case WeightFormat::kQ2_0:
      return RandomQ2(n, k, kind, seed, q2_block);
    case WeightFormat::kBf16:
      break;
  }
  return RandomBf16(n, k, kind, seed);
}

enum class ActivationKind {
  kGaussian,   // variance 1
  kTiny,       // BF16 subnormals and zeros of both signs
  kWideRange,  // 2^-40 to 2^40
  kSparse,     // nine of ten are zero
};
inline constexpr ActivationKind kAllActivationKinds[] = {
    ActivationKind::kGaussian, ActivationKind::kTiny, ActivationKind::kWideRange,
    ActivationKind::kSparse};
inline std::string Name(ActivationKind kind) {
  static constexpr const char* kNames[] = {"gaussian", "tiny", "wide_range", "sparse"};
  return kNames[static_cast<int>(kind)];
}

// BF16 bits [m, k].
inline std::vector<uint16_t> RandomActivations(int64_t m, int64_t k, ActivationKind kind,
                                               uint64_t seed) {
  Rng rng(~seed);  // a weight made with the same seed is not the same values
  std::vector<uint16_t> x(m * k);
  for (uint16_t& v : x) {
    const auto sign = static_cast<uint16_t>(rng.Below(2) << 15);
    switch (kind) {
      case ActivationKind::kGaussian:
        v = F32ToBf16(static_cast<float>(rng.Gauss()));
        break;
      case ActivationKind::kTiny:
        v = static_cast<uint16_t>(sign | rng.Below(128));
        break;
      case ActivationKind::kWideRange:
        v = static_cast<uint16_t>(sign | F32ToBf16(RandomFloat(rng, -40, 40)));
        break;
      case ActivationKind::kSparse:
        v = rng.Below(10) ? sign : F32ToBf16(static_cast<float>(rng.Gauss()));
        break;
    }
  }
  return x;
}

// BF16 bits [k, k]: row i is `value` at k = i and zero elsewhere, so output row i is one column of
// the weight: an exact answer in every class when the scales are powers of two.
inline std::vector<uint16_t> OneHotActivations(int64_t k, float value) {
  std::vector<uint16_t> x(k * k, 0);
  for (int64_t i = 0; i < k; ++i) x[i * k + i] = F32ToBf16(value);
  return x;
}

// One row of an fp8 or bf16 weight as BF16 bits.
inline std::vector<uint16_t> RowAsBf16(const MemoryWeight& weight, int64_t row) {
  std::vector<uint16_t> w(weight.spec().k);
  const auto bytes =
      weight.rows().subspan(row * weight.spec().row_bytes(), weight.spec().row_bytes());
  if (weight.spec().format == WeightFormat::kBf16) {
    std::memcpy(w.data(), bytes.data(), bytes.size());
  } else {
    std::transform(bytes.begin(), bytes.end(), w.begin(),
                   [](std::byte code) { return E4m3ToBf16(std::to_integer<uint8_t>(code)); });
  }
  return w;
}

// Replaces every fp8 scale by the power of two below it (sign kept), for exact probes.
inline void MakeScalesPowersOfTwo(std::span<float> scales) {
  for (float& s : scales) s = std::bit_cast<float>(std::bit_cast<uint32_t>(s) & 0xff800000u);
}

}  // namespace fulcrum::test

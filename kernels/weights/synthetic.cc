// Counter-based random bytes shaped into each format, any row alone and in any order.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/synthetic.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/formats/q2_0.h"
#include "kernels/weights/row_range.h"

namespace fulcrum {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// A bijection of 64 bits whose outputs over consecutive inputs look random.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  return x ^ (x >> 32);
}

// Every 16 random bits pick 16 bits of weights from a table of samples: two fp8 codes, one bf16
// value or eight q2_0 codes. A lookup for two bytes keeps making weights as fast as loading them.
using SampleTable = std::array<uint16_t, 65536>;

class Draws {
 public:
  explicit Draws(uint64_t key) : key_(key) {}
  uint64_t Bits() { return Mix(key_ + kGolden * counter_++); }
  uint64_t Below(uint64_t bound) { return (Bits() >> 32) * bound >> 32; }
  // Close to normal, mean 0 and variance 1: a sum of 12 uniform values. Integers until the last
  // step, and no library function, so that every machine makes the same bytes.
  float Normal() {
    int64_t sum = 0;
    for (int i = 0; i < 6; ++i) {
      const uint64_t bits = Bits();
      sum += static_cast<int64_t>(bits & 0xffff) + static_cast<int64_t>(bits >> 16 & 0xffff);
    }
    return static_cast<float>(sum - 12 * 0x7fff - 6) / 65536.0f;
  }

 private:
  const uint64_t key_;
  uint64_t counter_ = 0;
};

uint8_t Fp8Sample(Draws& draws) {
  // Block scaling puts the largest weight of a block at 448, some 4.5 deviations out.
  constexpr float kDeviation = 100.0f;
  constexpr uint64_t kEvenlyOneIn = 16;
  if (draws.Below(kEvenlyOneIn) != 0) return F32ToE4m3(draws.Normal() * kDeviation);
  const uint64_t magnitude = draws.Below(0x7f);  // every finite one; 0x7f is NaN
  return static_cast<uint8_t>(magnitude | draws.Below(2) << 7);
}

uint16_t Q2Sample(Draws& draws) {
  uint16_t codes = 0;
  for (int i = 0; i < 8; ++i) {
    const uint64_t r = draws.Below(100);
    const uint16_t code = r < 30 ? 0 : r < 68 ? 1 : r < 97 ? 2 : 3;
    codes = static_cast<uint16_t>(codes | code << (2 * i));
  }
  return codes;
}

template <class Sample>
SampleTable MakeTable(uint64_t key, Sample sample) {
  SampleTable table;
  Draws draws(key);
  for (uint16_t& entry : table) entry = sample(draws);
  return table;
}

const SampleTable& TableOf(WeightFormat format) {
  static const SampleTable fp8 = MakeTable(1, [](Draws& draws) {
    const uint16_t low = Fp8Sample(draws);
    return static_cast<uint16_t>(low | Fp8Sample(draws) << 8);
  });
  static const SampleTable q2 = MakeTable(2, Q2Sample);
  static const SampleTable bf16 = MakeTable(3, [](Draws& draws) {
    constexpr float kDeviation = 0.02f;
    return F32ToBf16(draws.Normal() * kDeviation);
  });
  switch (format) {
    case WeightFormat::kFp8Block128:
      return fp8;
    case WeightFormat::kQ2_0:
      return q2;
    case WeightFormat::kBf16:
      return bf16;
  }
  return bf16;
}

uint64_t KeyOf(uint64_t seed, std::string_view name) {
  uint64_t key = Mix(seed + kGolden);
  for (const char c : name) key = Mix(key ^ static_cast<unsigned char>(c)) + kGolden;
  return key;
}

void FillRow(const SampleTable& table, uint64_t key, std::span<std::byte> row) {
  const auto word = [&](uint64_t i) {
    const uint64_t r = Mix(key + kGolden * i);
    const uint64_t low = table[r & 0xffff] | static_cast<uint64_t>(table[r >> 16 & 0xffff]) << 16;
    const uint64_t high = table[r >> 32 & 0xffff] | static_cast<uint64_t>(table[r >> 48]) << 16;
    return low | high << 32;
  };
  const size_t words = row.size() / sizeof(uint64_t);
  for (size_t i = 0; i < words; ++i) {
    const uint64_t value = word(i);
    std::memcpy(row.data() + i * sizeof(value), &value, sizeof(value));
  }
  if (const size_t rest = row.size() % sizeof(uint64_t); rest != 0) {
    const uint64_t value = word(words);
    std::memcpy(row.data() + words * sizeof(value), &value, rest);
  }
}

class SyntheticSource final : public WeightSource {
 public:
  SyntheticSource(WeightSpec spec, uint64_t seed)
      : spec_(std::move(spec)),
        seed_(seed),
        key_(KeyOf(seed, spec_.name)),
        table_(TableOf(spec_.format)) {
    if (spec_.format == WeightFormat::kFp8Block128) MakeScales();
  }

  const WeightSpec& spec() const override { return spec_; }
  std::span<const float> scales() const override { return scales_; }
  std::string origin() const override { return absl::StrFormat("synthetic:%d", seed_); }

  absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
    if (absl::Status s = CheckRowRange(spec_, row, count, out.size()); !s.ok()) return s;
    const auto row_bytes = static_cast<size_t>(spec_.row_bytes());
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t key = Mix(key_ + static_cast<uint64_t>(row + i));
      const auto bytes = out.subspan(static_cast<size_t>(i) * row_bytes, row_bytes);
      FillRow(table_, key, bytes);
      if (spec_.format == WeightFormat::kQ2_0) WriteQ2Scales(key, bytes);
    }
    return absl::OkStatus();
  }

 private:
  // Block i of the grid has mantissa (a + b i) mod 2^23 with b odd: no two blocks of a matrix share
  // a scale, so a transposed or shifted grid never passes for the right one.
  void MakeScales() {
    constexpr uint32_t kMantissa = (1u << 23) - 1;
    constexpr uint32_t kExponent = 127 - 12;  // 2^-12 times a code of 100 is a weight near 0.02
    scales_.resize(static_cast<size_t>(spec_.scale_rows() * spec_.scale_cols()));
    const uint64_t r = Mix(key_ ^ kGolden);
    const auto first = static_cast<uint32_t>(r), step = static_cast<uint32_t>(r >> 32) | 1;
    for (uint32_t i = 0; i < scales_.size(); ++i) {
      scales_[i] = std::bit_cast<float>(kExponent << 23 | ((first + step * i) & kMantissa));
    }
  }

  // FP16 from 2^-8 up to 2^-4, every mantissa.
  void WriteQ2Scales(uint64_t key, std::span<std::byte> row) const {
    const auto block_bytes = static_cast<size_t>(Q2BlockBytes(spec_.q2_block));
    uint64_t block_key = ~key;
    for (size_t at = 0; at < row.size(); at += block_bytes) {
      const uint64_t r = Mix(block_key += kGolden);
      const auto d = static_cast<uint16_t>((7 + (r >> 10 & 3)) << 10 | (r & 0x3ff));
      std::memcpy(row.data() + at, &d, sizeof(d));
    }
  }

  const WeightSpec spec_;
  const uint64_t seed_;
  const uint64_t key_;
  const SampleTable& table_;
  std::vector<float> scales_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const WeightSource>> SyntheticWeight(const WeightSpec& spec,
                                                                    uint64_t seed) {
  if (absl::Status s = CheckSize(spec); !s.ok()) return s;
  constexpr int64_t kMostScales = 1 << 23;  // distinct ones
  if (spec.scale_rows() * spec.scale_cols() > kMostScales) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: synthetic weight of %dx%d has more than 2^23 blocks of 128x128",
                        spec.name, spec.n, spec.k));
  }
  if (spec.format == WeightFormat::kQ2_0 &&
      ((spec.q2_block != 64 && spec.q2_block != 128) || spec.k % spec.q2_block != 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: K = %d with q2_0 blocks of %d; blocks are 64 or 128 and divide K",
                        spec.name, spec.k, spec.q2_block));
  }
  return std::make_shared<SyntheticSource>(spec, seed);
}

}  // namespace fulcrum

// What an arm's contract is tested with: every compiled-in backend, weights and activations
// friendly and hostile, and the comparison with the oracle of a class. The contracts are
// arm_contract_test.cc and prefill_contract_test.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tests/support/arm_cases.h"
#include "tests/support/random_weights.h"
#include "tests/support/shapes.h"

namespace fulcrum::test {

inline constexpr int kRows = kMaxDecodeRows;

inline uint64_t Seed(const Shape& shape) {
  return static_cast<uint64_t>(shape.n * 100003 + shape.k * 7 + shape.q2_block);
}

inline MemoryWeight WeightOf(WeightFormat format, const Shape& shape, WeightKind kind) {
  return RandomWeight(format, shape.n, shape.k, kind, Seed(shape), shape.q2_block);
}

// Activations with the values a kernel gets wrong first, in known rows: NaN, infinities of both
// signs, subnormals, signed zeros, the largest finite value. Other rows are ordinary.
inline std::vector<uint16_t> HostileActivations(int64_t k, uint64_t seed) {
  std::vector<uint16_t> x = RandomActivations(kRows, k, ActivationKind::kGaussian, seed);
  constexpr uint16_t kSpecial[] = {0x7fc0, 0xffc1, 0x7f80, 0xff80, 0x0001, 0x807f,
                                   0x8000, 0x0000, 0x7f7f, 0xff7f, 0x7f81, 0x0080};
  Rng rng(seed + 1);
  for (int row = 1; row < kRows; row += 2) {
    const uint16_t special = kSpecial[static_cast<size_t>(row / 2) % std::size(kSpecial)];
    for (int i = 0; i < 1 + row % 3; ++i) x[row * k + rng.Below(k)] = special;
  }
  for (int64_t i = 0; i < k; ++i) x[6 * k + i] = i % 2 ? 0x8000 : 0x0000;
  return x;
}

inline std::vector<uint16_t> Repeated(ActivationKind kind, int64_t k, uint64_t seed) {
  return RandomActivations(kRows, k, kind, seed);
}

class ArmContract : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    under_test_ = OpenBackend(GetParam(), {.w8a8 = true, .w8a8_library = true});
  }

  Backend& backend() { return *under_test_.backend; }

  // Those the backend has an arm for; what it says to the others is its own test's.
  std::vector<WeightFormat> Formats() const {
    std::vector<WeightFormat> formats;
    for (const WeightFormat format : kAllWeightFormats) {
      if (std::ranges::any_of(under_test_.backend->ladder(),
                              [&](const Arm& arm) { return arm.format == format; })) {
        formats.push_back(format);
      }
    }
    EXPECT_FALSE(formats.empty());
    return formats;
  }

  std::shared_ptr<ResidentWeight> Upload(const WeightSource& source) {
    absl::StatusOr<std::shared_ptr<ResidentWeight>> weight = backend().Upload(source);
    EXPECT_TRUE(weight.ok()) << weight.status();
    return weight.ok() ? *weight : nullptr;
  }

  // All 32 rows; a row's reference does not depend on the batch, so every M compares a prefix.
  static std::vector<float> Reference(NumericsClass numerics, const WeightSource& source,
                                      std::span<const uint16_t> x) {
    std::vector<float> out(static_cast<size_t>(kRows * source.spec().n));
    const absl::Status status =
        numerics::ReferenceProduct(numerics, source, 0, source.spec().n, x, kRows, out);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  void ExpectOracleBytes(const Arm& arm, const ResidentWeight& weight,
                         std::span<const float> reference, std::span<const uint16_t> x, int m,
                         DType type) {
    const int64_t n = weight.spec().n;
    absl::StatusOr<std::vector<std::byte>> actual = RunPoisoned(backend(), arm, weight, x, m, type);
    ASSERT_TRUE(actual.ok()) << actual.status();
    const std::vector<std::byte> expected =
        StoredAs(reference.first(static_cast<size_t>(m * n)), type);
    const int64_t at = FirstDifference(*actual, expected, type);
    ASSERT_EQ(at, -1) << "row " << at / n << ", column " << at % n << " of M = " << m;
  }

  BackendUnderTest under_test_;
};

}  // namespace fulcrum::test

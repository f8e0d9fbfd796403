// One contract for every arm of every compiled-in backend: the bytes of the oracle of its class, at
// every M, on every shape, for friendly and hostile values; nothing written that was not asked for;
// and a comparison that is shown to see known-bad results. Prefill is prefill_contract_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/arm_contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace fulcrum::test {
namespace {

TEST_P(ArmContract, GivesTheOraclesBytesAtEveryMAndShape) {
  FULCRUM_NEED_BACKEND(under_test_);
  for (const WeightFormat format : Formats()) {
    for (const Shape& shape : RaggedShapes(format)) {
      const MemoryWeight source = WeightOf(format, shape, WeightKind::kUniformCodes);
      const std::shared_ptr<ResidentWeight> weight = Upload(source);
      ASSERT_NE(weight, nullptr);
      const std::vector<uint16_t> x =
          RandomActivations(kRows, shape.k, ActivationKind::kGaussian, Seed(shape));
      std::map<NumericsClass, std::vector<float>> references;
      for (const Arm& arm : backend().ladder()) {
        if (arm.format != format || !Pinned(backend(), arm)) continue;
        SCOPED_TRACE(testing::Message() << arm.name << " " << source.spec().name << " N=" << shape.n
                                        << " K=" << shape.k);
        if (!references.contains(arm.numerics)) {
          references[arm.numerics] = Reference(arm.numerics, source, x);
        }
        for (int m = arm.m_min; m <= std::min(arm.m_max, kRows); ++m) {
          const DType type = m % 2 ? DType::kF32 : DType::kBf16;
          ExpectOracleBytes(arm, *weight, references[arm.numerics], x, m, type);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(ArmContract, GivesTheOraclesBytesForEveryKindOfValue) {
  FULCRUM_NEED_BACKEND(under_test_);
  for (const WeightFormat format : Formats()) {
    for (const WeightKind kind : kAllWeightKinds) {
      for (const Shape& shape : {Shape{18, 2624}, Shape{33, 576}}) {
        const MemoryWeight source = WeightOf(format, shape, kind);
        const std::shared_ptr<ResidentWeight> weight = Upload(source);
        ASSERT_NE(weight, nullptr);
        std::vector<std::vector<uint16_t>> inputs = {HostileActivations(shape.k, 11)};
        for (const ActivationKind input : kAllActivationKinds) {
          inputs.push_back(Repeated(input, shape.k, 12));
        }
        for (const std::vector<uint16_t>& x : inputs) {
          std::map<NumericsClass, std::vector<float>> references;
          for (const Arm& arm : backend().ladder()) {
            if (arm.format != format || !Pinned(backend(), arm)) continue;
            SCOPED_TRACE(testing::Message() << arm.name << " " << source.spec().name << " input "
                                            << &x - inputs.data());
            if (!references.contains(arm.numerics)) {
              references[arm.numerics] = Reference(arm.numerics, source, x);
            }
            for (const int m : {1, 2, 5, 13, 16, 31, 32}) {
              if (m < arm.m_min || m > arm.m_max) continue;
              for (const DType type : {DType::kF32, DType::kBf16}) {
                ExpectOracleBytes(arm, *weight, references[arm.numerics], x, m, type);
                if (HasFatalFailure()) return;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(ArmContract, GivesTheOraclesBytesOnSampledRowsOfFullSizeProducts) {
  FULCRUM_NEED_BACKEND(under_test_);
  for (const WeightFormat format : Formats()) {
    for (const Shape& shape : BigShapes(format)) {
      const MemoryWeight source = WeightOf(format, shape, WeightKind::kUniformCodes);
      const std::shared_ptr<ResidentWeight> weight = Upload(source);
      ASSERT_NE(weight, nullptr);
      const std::vector<uint16_t> x =
          RandomActivations(kRows, shape.k, ActivationKind::kGaussian, Seed(shape));
      for (const Arm& arm : backend().ladder()) {
        if (arm.format != format || !Pinned(backend(), arm)) continue;
        SCOPED_TRACE(testing::Message() << arm.name << " K=" << shape.k);
        Rng rng(99);
        for (const int m : {1, 4, 16, 32}) {
          if (m < arm.m_min || m > arm.m_max) continue;
          absl::StatusOr<std::vector<std::byte>> actual =
              RunPoisoned(backend(), arm, *weight, x, m, DType::kF32);
          ASSERT_TRUE(actual.ok()) << actual.status();
          for (int sample = 0; sample < 40; ++sample) {
            const int64_t n = sample == 0 ? shape.n - 1 : rng.Below(shape.n);
            const int64_t row = rng.Below(m);
            absl::StatusOr<float> expected =
                numerics::ReferenceElement(arm.numerics, source, n,
                                           std::span(x).subspan(static_cast<size_t>(row * shape.k),
                                                                static_cast<size_t>(shape.k)));
            ASSERT_TRUE(expected.ok()) << expected.status();
            ASSERT_EQ(std::memcmp(&*expected, actual->data() + (row * shape.n + n) * 4, 4), 0)
                << "row " << row << ", column " << n << " of M = " << m;
          }
        }
      }
    }
  }
}

TEST_P(ArmContract, ARowAloneAndAmongStrangersGivesTheSameBytes) {
  FULCRUM_NEED_BACKEND(under_test_);
  for (const WeightFormat format : Formats()) {
    const Shape shape{257, 2624};
    const MemoryWeight source = WeightOf(format, shape, WeightKind::kGaussian);
    const std::shared_ptr<ResidentWeight> weight = Upload(source);
    ASSERT_NE(weight, nullptr);
    const std::vector<uint16_t> batch = HostileActivations(shape.k, 5);
    for (const Arm& arm : backend().ladder()) {
      if (arm.format != format || !Pinned(backend(), arm)) continue;
      if (arm.m_min > 1 || arm.m_max < kRows) continue;
      absl::StatusOr<std::vector<std::byte>> together =
          RunPoisoned(backend(), arm, *weight, batch, kRows, DType::kF32);
      ASSERT_TRUE(together.ok()) << together.status();
      for (int row = 0; row < kRows; ++row) {
        absl::StatusOr<std::vector<std::byte>> alone =
            RunPoisoned(backend(), arm, *weight, std::span(batch).subspan(row * shape.k, shape.k),
                        1, DType::kF32);
        ASSERT_TRUE(alone.ok()) << alone.status();
        EXPECT_EQ(std::memcmp(alone->data(), together->data() + row * shape.n * 4, shape.n * 4), 0)
            << arm.name << ": row " << row;
      }
    }
  }
}

TEST_P(ArmContract, OneHotRowsReadEveryWeight) {
  FULCRUM_NEED_BACKEND(under_test_);
  constexpr int64_t kN = 20, kK = 192;
  for (const WeightFormat format : {WeightFormat::kFp8Block128, WeightFormat::kBf16}) {
    MemoryWeight source = RandomWeight(format, kN, kK, WeightKind::kUniformCodes, 3);
    MakeScalesPowersOfTwo(source.mutable_scales());
    const std::shared_ptr<ResidentWeight> weight = Upload(source);
    ASSERT_NE(weight, nullptr);
    const std::vector<uint16_t> x = OneHotActivations(kK, 1.0f);
    std::vector<double> expected(kK * kN);
    ASSERT_TRUE(numerics::Float64Product(source, 0, kN, x, kK, expected).ok());
    for (const Arm& arm : backend().ladder()) {
      if (arm.format != format || !Pinned(backend(), arm) || arm.m_max < kRows) continue;
      for (int64_t k = 0; k < kK; k += kRows) {
        absl::StatusOr<std::vector<std::byte>> actual = RunPoisoned(
            backend(), arm, *weight, std::span(x).subspan(k * kK, kRows * kK), kRows, DType::kF32);
        ASSERT_TRUE(actual.ok()) << actual.status();
        for (int64_t i = 0; i < kRows * kN; ++i) {
          float value;
          std::memcpy(&value, actual->data() + i * 4, 4);
          ASSERT_EQ(static_cast<double>(value), expected[k * kN + i])
              << arm.name << ": k " << k + i / kN << ", column " << i % kN;
        }
      }
    }
  }
}

TEST_P(ArmContract, LongPrefillRunsInPiecesWithTheSameBytes) {
  FULCRUM_NEED_BACKEND(under_test_);
  constexpr int kLong = 2 * kRows + 25;
  for (const WeightFormat format : Formats()) {
    const Shape shape{96, 576};
    const MemoryWeight source = WeightOf(format, shape, WeightKind::kGaussian);
    const std::shared_ptr<ResidentWeight> weight = Upload(source);
    ASSERT_NE(weight, nullptr);
    const std::vector<uint16_t> x = RandomActivations(kLong, shape.k, ActivationKind::kGaussian, 8);
    for (const Arm& arm : backend().ladder()) {
      if (!arm.Serves(format, Step::kPrefill, kLong) || !Pinned(backend(), arm)) continue;
      std::vector<float> reference(kLong * shape.n);
      ASSERT_TRUE(
          numerics::ReferenceProduct(arm.numerics, source, 0, shape.n, x, kLong, reference).ok());
      ExpectOracleBytes(arm, *weight, reference, x, kLong, DType::kBf16);
      if (HasFatalFailure()) return;
    }
  }
}

// Weights and rows changed by as little as a real bug would: the comparison must see each.
TEST_P(ArmContract, KnownBadProductsAreSeen) {
  FULCRUM_NEED_BACKEND(under_test_);
  const Shape shape{130, 2560};
  for (const WeightFormat format : Formats()) {
    MemoryWeight source = WeightOf(format, shape, WeightKind::kUniformCodes);
    const std::vector<uint16_t> x =
        RandomActivations(kRows, shape.k, ActivationKind::kGaussian, 21);
    std::vector<uint16_t> last_k_dropped = x;
    for (int row = 0; row < kRows; ++row) last_k_dropped[(row + 1) * shape.k - 1] = 0;
    const std::shared_ptr<ResidentWeight> weight = Upload(source);
    ASSERT_NE(weight, nullptr);
    for (const Arm& arm : backend().ladder()) {
      if (arm.format != format || !Pinned(backend(), arm) || arm.m_max < kRows) continue;
      const std::vector<float> reference = Reference(arm.numerics, source, x);
      const std::vector<std::byte> expected = StoredAs(reference, DType::kF32);
      const auto seen = [&](const ResidentWeight& w, std::span<const uint16_t> input) {
        absl::StatusOr<std::vector<std::byte>> actual =
            RunPoisoned(backend(), arm, w, input, kRows, DType::kF32);
        EXPECT_TRUE(actual.ok()) << actual.status();
        return actual.ok() && FirstDifference(*actual, expected, DType::kF32) >= 0;
      };
      EXPECT_FALSE(seen(*weight, x)) << arm.name << ": the control itself differs";
      EXPECT_TRUE(seen(*weight, last_k_dropped)) << arm.name << ": last K dropped";
      MemoryWeight one_weight = source;
      one_weight.mutable_rows()[one_weight.rows().size() / 2] ^= std::byte{0x10};
      EXPECT_TRUE(seen(*Upload(one_weight), x)) << arm.name << ": one weight changed";
      if (format == WeightFormat::kFp8Block128) {
        MemoryWeight scale_moved = source;
        std::vector<float>& scales = scale_moved.mutable_scales();
        std::rotate(scales.begin(), scales.begin() + 1, scales.end());
        EXPECT_TRUE(seen(*Upload(scale_moved), x)) << arm.name << ": scales moved by one block";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ArmContract, testing::ValuesIn(CompiledBackends()),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace fulcrum::test

// The contract of arm_contract_test.cc for prefill: any number of rows, more than one launch of
// decode has; and for class w8a8, which promises no bits, its budget.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "kernels/numerics/budget.h"
#include "tests/support/arm_contract.h"

namespace fulcrum::test {
namespace {

// Numbers of rows around the edges of a decode batch and of the tiles of prefill.
constexpr int kPrefillRows[] = {1, 31, 33, 64, 65, 100, 257};
constexpr int kMostRows = 257;
constexpr int64_t kLeastOutputsForAMean = 700;

bool RunsPrefill(const Backend& backend, const Arm& arm, WeightFormat format) {
  return arm.Serves(format, Step::kPrefill, kMostRows) && (arm.needs & ~backend.device().caps) == 0;
}

TEST_P(ArmContract, PrefillGivesTheOraclesBytesAtEveryNumberOfRows) {
  FULCRUM_NEED_BACKEND(under_test_);
  for (const WeightFormat format : Formats()) {
    for (const Shape& shape : {Shape{3, 192}, Shape{129, 576}, Shape{200, 2624}, Shape{385, 128}}) {
      if (shape.k % (format == WeightFormat::kQ2_0 ? shape.q2_block : 1) != 0) continue;
      for (const WeightKind kind : {WeightKind::kUniformCodes, WeightKind::kGaussian}) {
        const MemoryWeight source = WeightOf(format, shape, kind);
        const std::shared_ptr<ResidentWeight> weight = Upload(source);
        ASSERT_NE(weight, nullptr);
        std::vector<uint16_t> x =
            RandomActivations(kMostRows, shape.k, ActivationKind::kGaussian, Seed(shape));
        const std::vector<uint16_t> hostile = HostileActivations(shape.k, 17);
        std::ranges::copy(hostile, x.begin() + 40 * shape.k);
        std::map<NumericsClass, std::vector<float>> references;
        for (const Arm& arm : backend().ladder()) {
          if (!RunsPrefill(backend(), arm, format) || !Pinned(backend(), arm)) continue;
          SCOPED_TRACE(testing::Message() << arm.name << " N=" << shape.n << " K=" << shape.k);
          std::vector<float>& reference = references[arm.numerics];
          if (reference.empty()) {
            reference.resize(kMostRows * shape.n);
            ASSERT_TRUE(numerics::ReferenceProduct(arm.numerics, source, 0, shape.n, x, kMostRows,
                                                   reference)
                            .ok());
          }
          for (const int m : kPrefillRows) {
            ExpectOracleBytes(arm, *weight, reference, x, m, m % 2 ? DType::kF32 : DType::kBf16);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(ArmContract, PrefillGivesTheOraclesBytesOnSamplesOfFullSizeProducts) {
  FULCRUM_NEED_BACKEND(under_test_);
  // Some tiles of a GPU are chosen only where there is much to do.
  const int rows = backend().name() == "cuda" ? 1300 : kMostRows;
  for (const WeightFormat format : Formats()) {
    for (const Shape& shape : BigShapes(format)) {
      const MemoryWeight source = WeightOf(format, shape, WeightKind::kUniformCodes);
      const std::shared_ptr<ResidentWeight> weight = Upload(source);
      ASSERT_NE(weight, nullptr);
      const std::vector<uint16_t> x =
          RandomActivations(rows, shape.k, ActivationKind::kGaussian, Seed(shape));
      for (const Arm& arm : backend().ladder()) {
        if (!RunsPrefill(backend(), arm, format) || !Pinned(backend(), arm)) continue;
        absl::StatusOr<std::vector<std::byte>> actual =
            RunPoisoned(backend(), arm, *weight, x, rows, DType::kF32);
        ASSERT_TRUE(actual.ok()) << actual.status();
        Rng rng(7);
        for (int sample = 0; sample < 200; ++sample) {
          const int64_t n = sample == 0 ? shape.n - 1 : rng.Below(shape.n);
          const int64_t row = sample == 1 ? rows - 1 : rng.Below(rows);
          absl::StatusOr<float> expected =
              numerics::ReferenceElement(arm.numerics, source, n,
                                         std::span(x).subspan(static_cast<size_t>(row * shape.k),
                                                              static_cast<size_t>(shape.k)));
          ASSERT_TRUE(expected.ok()) << expected.status();
          ASSERT_EQ(std::memcmp(&*expected, actual->data() + (row * shape.n + n) * 4, 4), 0)
              << arm.name << " K=" << shape.k << " row " << row << ", column " << n;
        }
      }
    }
  }
}

// A class that promises no bits has its budget instead. Of our own arm a row alone has the bits it
// has among others; a library chooses anew for every M.
TEST_P(ArmContract, W8A8IsWithinItsBudgetAtEveryNumberOfRows) {
  FULCRUM_NEED_BACKEND(under_test_);
  std::vector<const Arm*> arms;
  for (const Arm& arm : backend().ladder()) {
    if (arm.numerics == NumericsClass::kW8A8 &&
        RunsPrefill(backend(), arm, WeightFormat::kFp8Block128)) {
      arms.push_back(&arm);
    }
  }
  if (arms.empty()) GTEST_SKIP() << "no arm of class w8a8 for this device";
  for (const Shape& shape : {Shape{3, 192}, Shape{129, 576}, Shape{384, 2624}, Shape{200, 17408}}) {
    const MemoryWeight source = WeightOf(WeightFormat::kFp8Block128, shape, WeightKind::kGaussian);
    const std::shared_ptr<ResidentWeight> weight = Upload(source);
    ASSERT_NE(weight, nullptr);
    const std::vector<uint16_t> x =
        RandomActivations(kMostRows, shape.k, ActivationKind::kGaussian, Seed(shape));
    std::vector<double> exact(kMostRows * shape.n);
    ASSERT_TRUE(numerics::Float64Product(source, 0, shape.n, x, kMostRows, exact).ok());
    for (const Arm* const arm : arms) {
      std::vector<std::byte> whole;
      for (const int m : {kMostRows, 1, 31, 33, 100}) {
        SCOPED_TRACE(testing::Message()
                     << arm->name << " N=" << shape.n << " K=" << shape.k << " M=" << m);
        absl::StatusOr<std::vector<std::byte>> actual =
            RunPoisoned(backend(), *arm, *weight, x, m, DType::kF32);
        ASSERT_TRUE(actual.ok()) << actual.status();
        if (m == kMostRows) whole = *actual;
        if (m < kMostRows && (arm->needs & kCapLibrary) == 0) {
          EXPECT_TRUE(std::equal(actual->begin(), actual->end(), whole.begin()));
        }
        if (m * shape.n < kLeastOutputsForAMean) continue;
        std::vector<float> values(static_cast<size_t>(m * shape.n));
        std::memcpy(values.data(), actual->data(), actual->size());
        const auto expected = std::span(exact).first(values.size());
        const numerics::Verdict verdict = numerics::CheckW8A8Budget(expected, values, m, shape.n);
        EXPECT_TRUE(verdict.ok) << verdict.Describe();
        EXPECT_FALSE(numerics::CheckBudget(expected, values, m, shape.n, shape.k, DType::kF32).ok)
            << "quantised activations cannot be this near";
      }
    }
  }
}

}  // namespace
}  // namespace fulcrum::test

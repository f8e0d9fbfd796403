// The budget: what it passes and what it must not. The classes agree with each other, with float64
// and with products of other implementations within it, and the same calls reject every known-bad
// product. Then its own arithmetic, clause by clause, at the edges of each limit.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/budget.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/formats/q2_0.h"
#include "kernels/numerics/oracle.h"
#include "tests/support/mutations.h"
#include "tests/support/random_weights.h"
#include "tests/support/reference_files.h"

namespace fulcrum::numerics {
namespace {

using test::ActivationKind;
using test::WeightKind;

constexpr NumericsClass kOracleClasses[] = {NumericsClass::kExact, NumericsClass::kMma,
                                            NumericsClass::kBlockfold};

std::vector<float> Product(NumericsClass c, const WeightSource& weight, std::span<const uint16_t> x,
                           DType output) {
  const int m = static_cast<int>(static_cast<int64_t>(x.size()) / weight.spec().k);
  std::vector<float> out(m * weight.spec().n);
  const absl::Status status = ReferenceProduct(c, weight, 0, weight.spec().n, x, m, out);
  EXPECT_TRUE(status.ok()) << status;
  if (output == DType::kBf16) {
    std::ranges::transform(out, out.begin(), [](float v) { return Bf16ToF32(F32ToBf16(v)); });
  }
  return out;
}

std::vector<double> Float64(const WeightSource& weight, std::span<const uint16_t> x) {
  const int m = static_cast<int>(static_cast<int64_t>(x.size()) / weight.spec().k);
  std::vector<double> out(m * weight.spec().n);
  const absl::Status status = Float64Product(weight, 0, weight.spec().n, x, m, out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

// |x| of each row and |W|_F, as the q2_0 budget wants them.
std::vector<double> RowNorms(std::span<const uint16_t> x, int64_t k) {
  std::vector<double> norms(x.size() / k);
  for (size_t i = 0; i < x.size(); ++i) {
    norms[i / k] += std::pow(static_cast<double>(Bf16ToF32(x[i])), 2);
  }
  std::ranges::transform(norms, norms.begin(), [](double v) { return std::sqrt(v); });
  return norms;
}
double Frobenius(const test::MemoryWeight& weight) {
  const WeightSpec& spec = weight.spec();
  std::vector<float> row(spec.k);
  double sum = 0;
  for (int64_t n = 0; n < spec.n; ++n) {
    DecodeQ2Row(weight.rows().subspan(n * spec.row_bytes(), spec.row_bytes()), spec.q2_block, row);
    for (const float w : row) sum += static_cast<double>(w) * w;
  }
  return std::sqrt(sum);
}

// ---- The classes are within budget, and the same call rejects every known-bad product ----

struct Shape {
  WeightFormat format;
  int64_t n, k;
};
class BudgetClasses : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, BudgetClasses,
                         ::testing::Values(Shape{WeightFormat::kFp8Block128, 160, 200},
                                           Shape{WeightFormat::kFp8Block128, 160, 2560},
                                           Shape{WeightFormat::kFp8Block128, 64, 5120},
                                           Shape{WeightFormat::kFp8Block128, 32, 17408},
                                           Shape{WeightFormat::kBf16, 160, 200},
                                           Shape{WeightFormat::kBf16, 64, 5120}),
                         [](const auto& param) {
                           return std::string(Name(param.param.format)) + "_" +
                                  std::to_string(param.param.k);
                         });

TEST_P(BudgetClasses, PassAgainstExactAndFloat64AndKnownBadProductsDoNot) {
  constexpr int m = 2;
  const WeightFormat format = GetParam().format;
  const int64_t n = GetParam().n, k = GetParam().k;
  const test::MemoryWeight weight =
      test::RandomWeight(format, n, k, WeightKind::kNegativeScales, 1);
  const auto x = test::RandomActivations(m, k, ActivationKind::kGaussian, 2);
  const std::vector<float> exact = Product(NumericsClass::kExact, weight, x, DType::kF32);
  const std::vector<double> references[] = {Float64(weight, x), {exact.begin(), exact.end()}};
  for (const DType output : {DType::kBf16, DType::kF32}) {
    for (const NumericsClass c : kOracleClasses) {
      const auto product = [&](const WeightSource& w, std::span<const uint16_t> activations) {
        return Product(c, w, activations, output);
      };
      const std::vector<float> good = product(weight, x);
      const auto known_bad = test::KnownBadProducts(weight, x, m, output, product);
      // A bf16 weight has no scale to move, and an F32 output no ordinal worth counting.
      EXPECT_EQ(known_bad.size(), 3u + (output == DType::kBf16) +
                                      (weight.spec().format == WeightFormat::kFp8Block128));
      for (const std::vector<double>& reference : references) {
        const auto check = [&](std::span<const float> actual) {
          return CheckBudget(reference, actual, m, n, k, output);
        };
        EXPECT_TRUE(check(good).ok) << Name(c) << " " << check(good).Describe();
        for (const test::KnownBad& bad : known_bad) {
          const Verdict v = check(bad.product);
          EXPECT_FALSE(v.ok) << Name(c) << " " << bad.name << ": " << v.Describe();
        }
      }
    }
  }
}

TEST(Q2Budget, PassesTheExactClassAndRejectsKnownBadProducts) {
  constexpr int m = 4;
  constexpr int64_t n = 64, k = 256;
  for (const int block : {64, 128}) {
    for (const WeightKind kind : {WeightKind::kGaussian, WeightKind::kNegativeScales}) {
      const test::MemoryWeight weight = test::RandomQ2(n, k, kind, 3, block);
      const auto x = test::RandomActivations(m, k, ActivationKind::kGaussian, 4);
      const auto product = [&](const WeightSource& w, std::span<const uint16_t> activations) {
        return Product(NumericsClass::kExact, w, activations, DType::kF32);
      };
      const auto check = [&](std::span<const float> actual) {
        return CheckQ2Budget(Float64(weight, x), actual, m, n, k, RowNorms(x, k),
                             Frobenius(weight));
      };
      const Verdict good = check(product(weight, x));
      EXPECT_TRUE(good.ok) << good.Describe();
      for (const test::KnownBad& bad : test::KnownBadProducts(weight, x, m, DType::kF32, product)) {
        const Verdict v = check(bad.product);
        EXPECT_FALSE(v.ok) << bad.name << ": " << v.Describe();
      }
    }
  }
}

// The w8a8 class as it is meant: activations through E4M3 with one scale per 128 K.
TEST(W8A8Budget, PassesQuantisedActivationsAndRejectsMisplacedResults) {
  constexpr int m = 4;
  constexpr int64_t n = 64, k = 1024;
  const test::MemoryWeight weight = test::RandomFp8(n, k, WeightKind::kGaussian, 5);
  const auto x = test::RandomActivations(m, k, ActivationKind::kGaussian, 6);
  const auto product = [&](const WeightSource& w, std::span<const uint16_t> activations) {
    std::vector<float> quantised;
    for (size_t i = 0; i < activations.size(); i += 128) {
      std::vector<float> chunk(128), scale(1);
      std::vector<uint8_t> codes(128);
      std::ranges::transform(activations.subspan(i, 128), chunk.begin(), Bf16ToF32);
      EncodeFp8Block128(chunk, 1, 128, codes, scale);
      for (const uint8_t code : codes) quantised.push_back(E4m3ToF32(code) * scale[0]);
    }
    std::vector<float> out(m * n);
    for (int64_t i = 0; i < m * n; ++i) {
      const std::vector<uint16_t> row =
          test::RowAsBf16(static_cast<const test::MemoryWeight&>(w), i % n);
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) {
        sum +=
            static_cast<double>(Bf16ToF32(row[j])) * w.scales()[j / 128] * quantised[i / n * k + j];
      }
      out[i] = static_cast<float>(sum);
    }
    return out;
  };
  const std::vector<double> f64 = Float64(weight, x);
  const Verdict good = CheckW8A8Budget(f64, product(weight, x), m, n);
  EXPECT_TRUE(good.ok) << good.Describe();
  EXPECT_GT(good.relative_rms, 0);
  int rejected = 0;
  for (const test::KnownBad& bad : test::KnownBadProducts(weight, x, m, DType::kF32, product)) {
    if (bad.name == "last k dropped") continue;  // one k of 1024 is within what 3e-2 allows
    EXPECT_FALSE(CheckW8A8Budget(f64, bad.product, m, n).ok) << bad.name;
    ++rejected;
  }
  EXPECT_EQ(rejected, 3);
}

// ---- Files of other implementations ----

class BudgetFp8File : public ::testing::TestWithParam<test::ReferenceFile> {};
INSTANTIATE_TEST_SUITE_P(Files, BudgetFp8File, ::testing::ValuesIn(test::kFp8Files));

TEST_P(BudgetFp8File, EveryClassIsWithinBudgetOfTheirProduct) {
  const test::MemoryWeight weight = test::Load(GetParam());
  const std::vector<uint16_t> x = test::LoadActivations(GetParam());
  const std::vector<double> y = test::LoadProduct(GetParam());
  const auto [n, k] = std::pair(GetParam().n, GetParam().k);
  ASSERT_FALSE(weight.rows().empty());
  ASSERT_FALSE(x.empty());
  const int m = static_cast<int>(x.size() / k);
  ASSERT_EQ(y.size(), m * n);

  const std::vector<double> f64 = Float64(weight, x);
  const std::vector<float> narrow(f64.begin(), f64.end());
  // Both are float64 sums, so they agree to far less than the budget: rounded to F32, to one value.
  const Verdict own = CheckBudget(y, narrow, m, n, k, DType::kF32);
  EXPECT_TRUE(own.ok) << own.Describe();
  EXPECT_LE(own.max_ulp, 1) << own.Describe();

  for (const NumericsClass c : kOracleClasses) {
    const std::vector<float> out = Product(c, weight, x, DType::kF32);
    const Verdict f32 = CheckBudget(y, out, m, n, k, DType::kF32);
    EXPECT_TRUE(f32.ok) << Name(c) << " " << f32.Describe();
    const std::vector<float> bf16 = Product(c, weight, x, DType::kBf16);
    const Verdict rounded = CheckBudget(y, bf16, m, n, k, DType::kBf16);
    EXPECT_TRUE(rounded.ok) << Name(c) << " " << rounded.Describe();
  }
}

class BudgetQ2File : public ::testing::TestWithParam<test::ReferenceFile> {};
INSTANTIATE_TEST_SUITE_P(Files, BudgetQ2File, ::testing::ValuesIn(test::kQ2Files));

TEST_P(BudgetQ2File, IsWithinBudgetOfTheirProduct) {
  const test::MemoryWeight weight = test::Load(GetParam());
  const std::vector<uint16_t> x = test::LoadActivations(GetParam());
  const std::vector<double> y = test::LoadProduct(GetParam());
  const auto [n, k] = std::pair(GetParam().n, GetParam().k);
  ASSERT_FALSE(weight.rows().empty());
  ASSERT_FALSE(x.empty());
  const int m = static_cast<int>(x.size() / k);
  ASSERT_EQ(y.size(), m * n);

  const std::vector<double> f64 = Float64(weight, x);
  const std::vector<float> narrow(f64.begin(), f64.end());
  const Verdict own = CheckBudget(y, narrow, m, n, k, DType::kF32);
  EXPECT_TRUE(own.ok && own.max_ulp <= 1) << own.Describe();

  const Verdict v = CheckQ2Budget(y, Product(NumericsClass::kExact, weight, x, DType::kF32), m, n,
                                  k, RowNorms(x, k), Frobenius(weight));
  EXPECT_TRUE(v.ok) << v.Describe();
}

// ---- The arithmetic of the budget ----

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// A row of 1 and one element under test: rms stays 1 when the element is near 1.
Verdict CheckOne(double reference, float actual, DType output, int64_t k, int64_t n = 4096) {
  std::vector<double> r(n, 1.0);
  std::vector<float> a(n, 1.0f);
  r[n / 2] = reference;
  a[n / 2] = actual;
  return CheckBudget(r, a, 1, n, k, output);
}

TEST(CheckBudget, Bf16ElementPassesAtTwoValuesAndFailsAtThree) {
  for (const int by : {-3, -2, -1, 1, 2, 3}) {
    const Verdict v = CheckOne(1.5, test::Bf16OrdinalOff(1.5f, by), DType::kBf16, 128);
    EXPECT_EQ(v.ok, std::abs(by) < 3) << v.Describe();
    EXPECT_EQ(v.max_ulp, std::abs(by));
    EXPECT_EQ(v.over, std::abs(by) < 3 ? 0 : 1);
    EXPECT_EQ(v.worst_col, 2048);
    EXPECT_EQ(v.worst_reference, 1.5f);
  }
}

TEST(CheckBudget, FloorIsEightUnitsTimesRootOfKTimesTheRowsRms) {
  // K = 1024 and rms 1: 8 * 2^-24 * 32 = 2^-16. Near zero that is many values of BF16.
  std::vector<double> r(2, 1.0);
  std::vector<float> a(2, 1.0f);
  r[1] = 0;
  const double rms = std::sqrt(0.5);
  for (const DType output : {DType::kBf16, DType::kF32}) {
    a[1] = Bf16ToF32(F32ToBf16(static_cast<float>(0x1p-16 * rms * 0.99)));
    EXPECT_EQ(CheckBudget(r, a, 1, 2, 1024, output).over, 0) << Name(output);
    a[1] = Bf16ToF32(F32ToBf16(static_cast<float>(0x1p-16 * rms * 1.01)));
    EXPECT_EQ(CheckBudget(r, a, 1, 2, 1024, output).over, 1) << Name(output);
    a[1] = -a[1];  // no exemption for a flipped sign
    EXPECT_EQ(CheckBudget(r, a, 1, 2, 1024, output).over, 1) << Name(output);
  }
}

TEST(CheckBudget, FloorIsOfTheElementsOwnRow) {
  // Row 0 is large; an error that would pass there fails in row 1.
  const std::vector<double> r = {1000, 1000, 1, 1};
  const float error = 0x1p-15f;
  EXPECT_EQ(
      CheckBudget(r, std::vector<float>{1000 + 2 * error, 1000, 1, 1}, 2, 2, 256, DType::kF32).over,
      0);
  const Verdict v =
      CheckBudget(r, std::vector<float>{1000, 1000, 1 + error, 1}, 2, 2, 256, DType::kF32);
  EXPECT_EQ(v.over, 1);
  EXPECT_EQ(v.worst_row, 1);
  EXPECT_EQ(v.worst_col, 0);
}

TEST(CheckBudget, RelativeRmsFailsWhenEveryElementPasses) {
  // Every BF16 value one too high: each within 2, together 2^-8 or so.
  const std::vector<double> r(256, 1.0);
  const std::vector<float> a(256, test::Bf16OrdinalOff(1, 1));
  const Verdict v = CheckBudget(r, a, 1, 256, 128, DType::kBf16);
  EXPECT_EQ(v.over, 0);
  EXPECT_EQ(v.relative_rms, 0x1p-7);
  EXPECT_FALSE(v.ok);

  // F32 at K = 16384: the floor is 2^-14 of the rms, six times what all elements may be off by.
  const std::vector<float> within(256, 1 + 0x1p-15f);
  const Verdict f32 = CheckBudget(r, within, 1, 256, 16384, DType::kF32);
  EXPECT_EQ(f32.over, 0);
  EXPECT_FALSE(f32.ok) << f32.Describe();
  EXPECT_TRUE(CheckBudget(r, std::vector<float>(256, 1 + 0x1p-17f), 1, 256, 16384, DType::kF32).ok);
}

TEST(CheckBudget, ReferenceIsRoundedOnceToTheOutputType) {
  // Just above a tie of BF16, by less than F32 can hold: rounding through F32 would go down to
  // even.
  const double above_tie = 1 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(CheckOne(above_tie, 1 + 0x1p-7f, DType::kBf16, 1).max_ulp, 0);
  EXPECT_EQ(CheckOne(1 + 0x1p-8, 1.0f, DType::kBf16, 1).max_ulp, 0);
  EXPECT_EQ(CheckOne(-1e300, -std::numeric_limits<float>::infinity(), DType::kBf16, 1).over, 0);
  EXPECT_EQ(CheckOne(1e-300, 0, DType::kBf16, 1).max_ulp, 0);
  EXPECT_EQ(CheckOne(1 + 0x1p-30, 1.0f, DType::kF32, 1).max_abs, 0);
}

TEST(CheckBudget, NonFiniteValuesMatchInKindAndPosition) {
  const double values[] = {kNan, kInf, -kInf, 2.0};
  for (const DType output : {DType::kBf16, DType::kF32}) {
    for (int r = 0; r < 4; ++r) {
      for (int a = 0; a < 4; ++a) {
        const Verdict v = CheckOne(values[r], static_cast<float>(values[a]), output, 128);
        EXPECT_EQ(v.ok, r == a) << v.Describe();
        EXPECT_EQ(v.worst_col, r == a ? v.worst_col : 2048) << v.Describe();
      }
    }
  }
  // They do not spoil the floor of the rest of the row.
  std::vector<double> r = {kInf, kNan, 1, 1};
  std::vector<float> a = {static_cast<float>(kInf), static_cast<float>(kNan), 1, 1.5f};
  EXPECT_EQ(CheckBudget(r, a, 1, 4, 128, DType::kBf16).over, 1);
}

TEST(CheckBudget, NothingComparedIsNotOk) {
  EXPECT_FALSE(CheckBudget({}, {}, 0, 16, 128, DType::kBf16).ok);
  EXPECT_FALSE(CheckQ2Budget({}, {}, 0, 16, 128, {}, 1).ok);
  EXPECT_FALSE(CheckW8A8Budget({}, {}, 0, 16).ok);
}

TEST(CheckBudget, AnAllZeroRowMustBeZero) {
  const std::vector<double> r(64, 0.0);
  std::vector<float> a(64, -0.0f);
  EXPECT_TRUE(CheckBudget(r, a, 1, 64, 128, DType::kF32).ok);
  a[3] = 1e-30f;
  EXPECT_FALSE(CheckBudget(r, a, 1, 64, 128, DType::kF32).ok);
  EXPECT_FALSE(CheckBudget(r, a, 1, 64, 128, DType::kBf16).ok);
}

TEST(CheckQ2Budget, LimitIsPerRow) {
  // |x| = 10 and 1, |W|_F = 2, K = 4: limits 0.3 and 0.03.
  const std::vector<double> r(4, 1.0), norms = {10, 1};
  const auto over = [&](float row0, float row1) {
    return CheckQ2Budget(r, std::vector<float>{1 + row0, 1, 1, 1 + row1}, 2, 2, 4, norms, 2).over;
  };
  EXPECT_EQ(over(0.29f, 0.029f), 0);
  EXPECT_EQ(over(0.31f, 0), 2);
  EXPECT_EQ(over(0, 0.031f), 2);
  EXPECT_EQ(CheckQ2Budget(r, std::vector<float>{1, 1, 1, NAN}, 2, 2, 4, norms, 2).over, 1);
}

TEST(BudgetDistance, CountsRepresentableValues) {
  EXPECT_EQ(Bf16Distance(0x0000, 0x8000), 0);
  EXPECT_EQ(Bf16Distance(0x0001, 0x8001), 2);
  EXPECT_EQ(Bf16Distance(0x3f80, 0x3f83), 3);
  EXPECT_EQ(Bf16Distance(0x7f7f, 0x7f80), 1);
  EXPECT_EQ(Bf16Distance(0x7fff, 0xffc0), 0);
  EXPECT_EQ(Bf16Distance(0x7fff, 0x7f80), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(F32Distance(0.0f, -0.0f), 0);
  EXPECT_EQ(F32Distance(1.0f, std::nextafter(1.0f, 2.0f)), 1);
  EXPECT_EQ(F32Distance(-0x1p-149f, 0x1p-149f), 2);
  EXPECT_EQ(F32Distance(NAN, -NAN), 0);
  EXPECT_EQ(F32Distance(1.0f, NAN), std::numeric_limits<int64_t>::max());
}

TEST(BudgetVerdict, DescribesTheWorstElement) {
  const Verdict v = CheckOne(1.5, 2.5f, DType::kF32, 128);
  EXPECT_THAT(v.Describe(), ::testing::AllOf(::testing::HasSubstr("OUT OF BUDGET"),
                                             ::testing::HasSubstr("[0, 2048]"),
                                             ::testing::HasSubstr("reference 1.5, actual 2.5")));
}

}  // namespace
}  // namespace fulcrum::numerics

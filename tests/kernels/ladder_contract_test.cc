// What a caller gets from the ladder of each compiled-in backend: a row's bytes are the row's own,
// wherever it stands, however many rows share its launch and whichever arms the ladder hands over
// between; and every scale and every K counts where it belongs. One arm alone is
// arm_contract_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/ladder/ladder.h"
#include "tests/support/arm_contract.h"
#include "tests/support/random_weights.h"
#include "tests/support/shapes.h"

namespace fulcrum::test {
namespace {

using Bytes = std::vector<std::byte>;

// What a caller asks for and what is open: each promises one result a row.
struct Terms {
  Policy policy;
  const char* m16_tc;
};
constexpr Terms kOneResult[] = {{Policy::kExact, "off"},
                                {Policy::kBatchInvariant, "off"},
                                {Policy::kBatchInvariant, "all:one_pass"},
                                {Policy::kBatchInvariant, "all:m16"},
                                {Policy::kBatchInvariant, "all:m16_n64"}};

class LadderContract : public ArmContract {
 protected:
  void SetUp() override { under_test_ = OpenBackend(GetParam()); }

  const Arm* Pick(WeightFormat format, Step step, const Terms& terms, int m) {
    const LadderQuery query = {.format = format,
                               .family = Family::kFfnDown,
                               .step = step,
                               .policy = terms.policy,
                               .device_caps = backend().device().caps};
    LeverSet levers;
    EXPECT_TRUE(levers.Set("m16_tc", terms.m16_tc).ok());
    const Arm* const arm = PickArm(backend().ladder(), query,
                                   AllowedClasses(backend().ladder(), query, levers), levers, m);
    EXPECT_NE(arm, nullptr) << Name(format) << " " << Name(step) << " M = " << m;
    return arm;
  }

  // F32 output rows of one launch; none when it failed.
  std::vector<Bytes> Run(const Arm& arm, const ResidentWeight& weight, std::span<const uint16_t> x,
                         int m) {
    const absl::StatusOr<Bytes> out = RunPoisoned(backend(), arm, weight, x, m, DType::kF32);
    EXPECT_TRUE(out.ok()) << arm.name << ": " << out.status();
    std::vector<Bytes> rows;
    const int64_t row_bytes = weight.spec().n * 4;
    for (int row = 0; out.ok() && row < m; ++row) {
      const auto at = out->begin() + row * row_bytes;
      rows.emplace_back(at, at + row_bytes);
    }
    return rows;
  }
};

std::vector<uint16_t> Gaussian(int m, int64_t k, uint64_t seed) {
  return RandomActivations(m, k, ActivationKind::kGaussian, seed);
}

TEST_P(LadderContract, AnAnchorRowHasOneResultAtEveryMAndPosition) {
  FULCRUM_NEED_BACKEND(under_test_);
  constexpr int64_t kK = 2624;
  const std::vector<uint16_t> anchor = Gaussian(1, kK, 1);
  for (const WeightFormat format : Formats()) {
    const MemoryWeight source = RandomWeight(format, 40, kK, WeightKind::kGaussian, 2);
    const std::shared_ptr<ResidentWeight> weight = Upload(source);
    ASSERT_NE(weight, nullptr);
    for (const Terms& terms : kOneResult) {
      const Arm* const alone = Pick(format, Step::kDecode, terms, 1);
      ASSERT_NE(alone, nullptr);
      const std::vector<Bytes> expected = Run(*alone, *weight, anchor, 1);
      ASSERT_EQ(expected.size(), 1u);
      for (int m = 1; m <= kRows; ++m) {
        const Arm* const arm = Pick(format, Step::kDecode, terms, m);
        ASSERT_NE(arm, nullptr);
        EXPECT_EQ(arm->numerics, alone->numerics);
        std::vector<uint16_t> batch = Gaussian(m, kK, static_cast<uint64_t>(m) + 10);
        for (const int position : {0, m / 2, m - 1}) {
          std::copy(anchor.begin(), anchor.end(), batch.begin() + position * kK);
        }
        const std::vector<Bytes> rows = Run(*arm, *weight, batch, m);
        ASSERT_EQ(rows.size(), static_cast<size_t>(m));
        for (const int position : {0, m / 2, m - 1}) {
          ASSERT_EQ(rows[static_cast<size_t>(position)], expected.front())
              << arm->name << " (" << Name(terms.policy) << ", " << terms.m16_tc << "): row "
              << position << " of M = " << m;
        }
      }
    }
  }
}

// The batch of one stream grows and shrinks across every hand-over of the ladder.
TEST_P(LadderContract, AStreamKeepsItsBitsAcrossEverySeam) {
  FULCRUM_NEED_BACKEND(under_test_);
  constexpr int64_t kN = 24, kK = 5120;
  constexpr int kMost = 65;
  const std::vector<uint16_t> x = Gaussian(kMost, kK, 3);
  for (const WeightFormat format : Formats()) {
    const MemoryWeight source = RandomWeight(format, kN, kK, WeightKind::kUniformCodes, 4);
    const std::shared_ptr<ResidentWeight> weight = Upload(source);
    ASSERT_NE(weight, nullptr);
    std::map<NumericsClass, std::vector<float>> references;  // all rows: a row's is its own
    for (const Terms& terms : kOneResult) {
      for (const Step step : kAllSteps) {
        std::vector<int> rows = {1, 4, 5, 4, 8, 9, 16, 17, 16, 31, 32};
        if (step == Step::kPrefill) rows.insert(rows.end(), {33, 32, 64, 65});
        std::set<NumericsClass> classes;
        for (const int m : rows) {
          const Arm* const arm = Pick(format, step, terms, m);
          ASSERT_NE(arm, nullptr);
          SCOPED_TRACE(testing::Message() << arm->name << " " << Name(step) << " M = " << m);
          EXPECT_TRUE(arm->Serves(format, step, m));
          classes.insert(arm->numerics);
          ASSERT_EQ(classes.size(), 1u) << "two classes in one stream";
          std::vector<float>& reference = references[arm->numerics];
          if (reference.empty()) {
            reference.resize(kMost * kN);
            ASSERT_TRUE(
                numerics::ReferenceProduct(arm->numerics, source, 0, kN, x, kMost, reference).ok());
          }
          const Bytes expected =
              StoredAs(std::span(reference).first(static_cast<size_t>(m * kN)), DType::kF32);
          const absl::StatusOr<Bytes> out =
              RunPoisoned(backend(), *arm, *weight, x, m, DType::kF32);
          ASSERT_TRUE(out.ok()) << out.status();
          ASSERT_EQ(FirstDifference(*out, expected, DType::kF32), -1);
        }
      }
    }
  }
}

TEST_P(LadderContract, EveryRemainderOfKGivesARowTheSameBytesAloneAndAmongSeventeen) {
  FULCRUM_NEED_BACKEND(under_test_);
  constexpr int64_t kN = 24;
  constexpr int kM = 17;
  for (const WeightFormat format : Formats()) {
    const int64_t step = format == WeightFormat::kQ2_0 ? 64 : 1;
    const int64_t last = format == WeightFormat::kQ2_0 ? 1024 : 256;
    for (int64_t k = step == 1 ? 129 : step; k <= last; k += step) {
      const MemoryWeight source =
          RandomWeight(format, kN, k, WeightKind::kUniformCodes, static_cast<uint64_t>(k));
      const std::shared_ptr<ResidentWeight> weight = Upload(source);
      ASSERT_NE(weight, nullptr);
      const std::vector<uint16_t> x = Gaussian(kM, k, static_cast<uint64_t>(k) + 1);
      for (const Terms& terms : {kOneResult[0], kOneResult[2]}) {
        const Arm* const many = Pick(format, Step::kDecode, terms, kM);
        const Arm* const one = Pick(format, Step::kDecode, terms, 1);
        ASSERT_TRUE(many != nullptr && one != nullptr);
        const std::vector<Bytes> together = Run(*many, *weight, x, kM);
        ASSERT_EQ(together.size(), static_cast<size_t>(kM));
        for (const int row : {0, 8, 16}) {
          const std::vector<Bytes> alone =
              Run(*one, *weight, std::span(x).subspan(static_cast<size_t>(row * k)), 1);
          ASSERT_EQ(alone.size(), 1u);
          ASSERT_EQ(alone.front(), together[static_cast<size_t>(row)])
              << one->name << " and " << many->name << ", K = " << k << ", row " << row;
        }
      }
    }
  }
}

// Grids that are square, or whose shape says nothing of their layout, with a value of its own a
// block: one scale off by its last bit, and the grid transposed, must each be seen.
TEST_P(LadderContract, EveryScaleBelongsToItsBlockAlone) {
  FULCRUM_NEED_BACKEND(under_test_);
  constexpr int kM = 4;
  for (const Shape& shape : {Shape{512, 512}, Shape{250, 256}, Shape{256, 256}}) {
    const int64_t n = shape.n, k = shape.k;
    MemoryWeight source = RandomFp8(n, k, WeightKind::kUniformCodes, 5);
    const int64_t scale_rows = source.spec().scale_rows(), scale_cols = source.spec().scale_cols();
    for (int64_t i = 0; i < scale_rows * scale_cols; ++i) {
      source.mutable_scales()[static_cast<size_t>(i)] = 0.01f * static_cast<float>(7 * i + 3);
    }
    const std::vector<uint16_t> x = Gaussian(kM, k, 6);
    const std::shared_ptr<ResidentWeight> weight = Upload(source);
    ASSERT_NE(weight, nullptr);
    for (const Terms& terms : {kOneResult[0], kOneResult[2]}) {
      const Arm* const arm = Pick(WeightFormat::kFp8Block128, Step::kDecode, terms, kM);
      ASSERT_NE(arm, nullptr);
      SCOPED_TRACE(testing::Message() << arm->name << " N = " << n << " K = " << k);
      std::vector<float> reference(static_cast<size_t>(kM * n));
      ASSERT_TRUE(numerics::ReferenceProduct(arm->numerics, source, 0, n, x, kM, reference).ok());
      const absl::StatusOr<Bytes> right = RunPoisoned(backend(), *arm, *weight, x, kM, DType::kF32);
      ASSERT_TRUE(right.ok()) << right.status();
      ASSERT_EQ(FirstDifference(*right, StoredAs(reference, DType::kF32), DType::kF32), -1);

      // Columns whose output the changed grid changes, of any row.
      const auto changed_columns = [&](const MemoryWeight& changed) {
        std::set<int64_t> columns;
        const std::shared_ptr<ResidentWeight> other = Upload(changed);
        if (other == nullptr) return columns;
        const absl::StatusOr<Bytes> out = RunPoisoned(backend(), *arm, *other, x, kM, DType::kF32);
        EXPECT_TRUE(out.ok()) << out.status();
        for (int64_t i = 0; out.ok() && i < kM * n; ++i) {
          if (std::memcmp(out->data() + i * 4, right->data() + i * 4, 4) != 0) {
            columns.insert(i % n);
          }
        }
        return columns;
      };
      for (int64_t i = 0; i < scale_rows * scale_cols; ++i) {
        MemoryWeight one_off = source;
        float& scale = one_off.mutable_scales()[static_cast<size_t>(i)];
        scale = std::nextafter(scale, 2 * scale);
        const std::set<int64_t> columns = changed_columns(one_off);
        ASSERT_FALSE(columns.empty()) << "scale " << i;
        EXPECT_EQ(*columns.begin() / 128, i / scale_cols) << "scale " << i;
        EXPECT_EQ(*columns.rbegin() / 128, i / scale_cols) << "scale " << i;
      }
      MemoryWeight transposed = source;
      for (int64_t row = 0; row < scale_rows; ++row) {
        for (int64_t col = 0; col < scale_cols; ++col) {
          transposed.mutable_scales()[static_cast<size_t>(col * scale_cols + row)] =
              source.scales()[static_cast<size_t>(row * scale_cols + col)];
        }
      }
      EXPECT_GT(changed_columns(transposed).size(), static_cast<size_t>(n / 2));
    }
  }
}

// Weights and slots of other shapes leave their memory full of NaN; what pads a ragged shape is
// made anew and not found there.
TEST_P(LadderContract, PaddingIsZeroWhateverTheMemoryHeld) {
  FULCRUM_NEED_BACKEND(under_test_);
  constexpr int kM = 17;
  for (const WeightFormat format : Formats()) {
    const int64_t k = format == WeightFormat::kQ2_0 ? 192 : 200;
    const MemoryWeight ragged = RandomWeight(format, 130, k, WeightKind::kGaussian, 7);
    MemoryWeight dirty = RandomWeight(format, 256, 256, WeightKind::kGaussian, 8);
    std::ranges::fill(dirty.mutable_rows(), std::byte{0xff});
    const std::vector<uint16_t> x = Gaussian(kM, k, 9);
    for (int turn = 0; turn < 4; ++turn) {
      {
        const std::shared_ptr<ResidentWeight> before = Upload(dirty);
        ASSERT_NE(before, nullptr);
        const Arm* const arm = Pick(format, Step::kDecode, kOneResult[0], kRows);
        ASSERT_NE(arm, nullptr);
        const std::vector<uint16_t> nan(static_cast<size_t>(kRows * 256), 0xffff);
        ASSERT_EQ(Run(*arm, *before, nan, kRows).size(), static_cast<size_t>(kRows));
      }
      const std::shared_ptr<ResidentWeight> weight = Upload(ragged);
      ASSERT_NE(weight, nullptr);
      for (const Terms& terms : {kOneResult[0], kOneResult[2]}) {
        const Arm* const arm = Pick(format, Step::kDecode, terms, kM);
        ASSERT_NE(arm, nullptr);
        std::vector<float> reference(static_cast<size_t>(kM * 130));
        ASSERT_TRUE(
            numerics::ReferenceProduct(arm->numerics, ragged, 0, 130, x, kM, reference).ok());
        const absl::StatusOr<Bytes> out = RunPoisoned(backend(), *arm, *weight, x, kM, DType::kF32);
        ASSERT_TRUE(out.ok()) << out.status();
        ASSERT_EQ(FirstDifference(*out, StoredAs(reference, DType::kF32), DType::kF32), -1)
            << arm->name << " in turn " << turn;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LadderContract, testing::ValuesIn(CompiledBackends()),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace fulcrum::test

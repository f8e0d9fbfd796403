// Columns by the CPU's arms against the plain loops, in every format and number of rows.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/exact_columns.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/numerics/oracle.h"
#include "tests/support/random_weights.h"

namespace fulcrum {
namespace {

void ExpectTheOraclesBits(const std::shared_ptr<const WeightSource>& source, int64_t column,
                          int64_t columns, int rows) {
  const auto x = test::RandomActivations(rows, source->spec().k, test::ActivationKind::kGaussian,
                                         static_cast<uint64_t>(rows));
  std::vector<float> expected(static_cast<size_t>(rows * columns)), found(expected.size());
  ASSERT_TRUE(
      numerics::ReferenceProduct(NumericsClass::kExact, *source, column, columns, x, rows, expected)
          .ok());
  ExactColumns exact;
  for (int round = 0; round < 2; ++round) {  // with what the first left
    const absl::Status s = exact.Compute(source, column, columns, x, rows, found);
    ASSERT_TRUE(s.ok()) << s;
    EXPECT_EQ(0, std::memcmp(expected.data(), found.data(), 4 * found.size())) << rows;
  }
}

TEST(ExactColumns, HaveTheOraclesBits) {
  const std::shared_ptr<const WeightSource> fp8 = std::make_shared<test::MemoryWeight>(
      test::RandomFp8(300, 700, test::WeightKind::kGaussian, 3));
  const std::shared_ptr<const WeightSource> bf16 = std::make_shared<test::MemoryWeight>(
      test::RandomBf16(300, 700, test::WeightKind::kGaussian, 4));
  const std::shared_ptr<const WeightSource> q2 = std::make_shared<test::MemoryWeight>(
      test::RandomQ2(300, 704, test::WeightKind::kGaussian, 5));
  for (const int rows : {1, 3, 16, 17, 32}) {
    for (const auto& source : {fp8, bf16, q2}) {
      ExpectTheOraclesBits(source, 128, 128, rows);
      ExpectTheOraclesBits(source, 256, 44, rows);
    }
  }
}

TEST(ExactColumns, SayWhatIsWrong) {
  const auto source = std::make_shared<test::MemoryWeight>(
      test::RandomFp8(300, 256, test::WeightKind::kGaussian, 3));
  std::vector<float> out(128);
  const std::vector<uint16_t> x(256);
  ExactColumns exact;
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, exact.Compute(source, 64, 128, x, 1, out).code());
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, exact.Compute(source, 256, 128, x, 1, out).code());
}

}  // namespace
}  // namespace fulcrum

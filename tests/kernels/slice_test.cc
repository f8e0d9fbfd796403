// Row and column slices: the bytes and scales of the larger matrix, on block boundaries only.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/random_weights.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::HasSubstr;

// The expected bytes of a slice, by the definition: byte b of row r is in it when its column is.
std::vector<std::byte> Cut(const MemoryWeight& whole, const SliceRange& range) {
  const WeightSpec& spec = whole.spec();
  WeightSpec before = spec, wide = spec;
  before.k = range.column;
  wide.k = range.columns;
  std::vector<std::byte> out;
  for (int64_t row = range.row; row < range.row + range.rows; ++row) {
    const auto begin = whole.rows().begin() + row * spec.row_bytes() + before.row_bytes();
    out.insert(out.end(), begin, begin + wide.row_bytes());
  }
  return out;
}

void ExpectSlice(const MemoryWeight& whole, const SliceRange& range) {
  const auto slice = Slice(std::make_shared<MemoryWeight>(whole), range);
  ASSERT_TRUE(slice.ok()) << slice.status();
  const WeightSpec& spec = (*slice)->spec();
  EXPECT_EQ(spec.n, range.rows);
  EXPECT_EQ(spec.k, range.columns);
  EXPECT_EQ(spec.q2_block, whole.spec().q2_block);
  const std::vector<std::byte> expected = Cut(whole, range);
  EXPECT_EQ(ReadAll(**slice), expected);
  // Rows one by one, last first.
  std::vector<std::byte> row(static_cast<size_t>(spec.row_bytes()));
  for (int64_t n = spec.n - 1; n >= 0; --n) {
    ASSERT_TRUE((*slice)->ReadRows(n, 1, row).ok());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), expected.begin() + n * spec.row_bytes()));
  }
  EXPECT_FALSE((*slice)->ReadRows(spec.n, 1, row).ok());
  std::vector<float> scales;
  if (spec.format == WeightFormat::kFp8Block128) {
    for (int64_t r = 0; r < spec.scale_rows(); ++r) {
      for (int64_t c = 0; c < spec.scale_cols(); ++c) {
        scales.push_back(whole.scales()[static_cast<size_t>(
            (range.row / 128 + r) * whole.spec().scale_cols() + range.column / 128 + c)]);
      }
    }
  }
  EXPECT_THAT((*slice)->scales(), ::testing::ElementsAreArray(scales));
}

TEST(Slice, Fp8KeepsCodesAndTheirScales) {
  const MemoryWeight whole = RandomFp8(400, 712, WeightKind::kUniformCodes, 1);
  ExpectSlice(whole, {0, 400, 0, 712});
  ExpectSlice(whole, {128, 256, 0, 712});
  ExpectSlice(whole, {0, 400, 128, 256});
  ExpectSlice(whole, {256, 144, 512, 200});  // both ragged ends
  ExpectSlice(whole, {384, 16, 640, 72});    // only the ragged last block
}

TEST(Slice, Q2KeepsWholeBlocks) {
  ExpectSlice(RandomQ2(50, 640, WeightKind::kUniformCodes, 1, 64), {7, 31, 64, 192});
  ExpectSlice(RandomQ2(50, 640, WeightKind::kUniformCodes, 1, 128), {49, 1, 512, 128});
}

TEST(Slice, Bf16CutsAnywhere) {
  ExpectSlice(RandomBf16(33, 101, WeightKind::kGaussian, 1), {5, 3, 1, 99});
}

TEST(Slice, ASliceOfASliceIsTheSliceOfTheSum) {
  const auto whole =
      std::make_shared<MemoryWeight>(RandomFp8(512, 512, WeightKind::kUniformCodes, 9));
  const auto outer = Slice(whole, {.row = 128, .rows = 384, .column = 128, .columns = 384});
  ASSERT_TRUE(outer.ok());
  const auto inner = Slice(*outer, {.row = 128, .rows = 128, .column = 256, .columns = -1});
  const auto direct = Slice(whole, {.row = 256, .rows = 128, .column = 384, .columns = 128});
  ASSERT_TRUE(inner.ok() && direct.ok());
  EXPECT_EQ(ReadAll(**inner), ReadAll(**direct));
  EXPECT_THAT((*inner)->scales(), ::testing::ElementsAreArray((*direct)->scales()));
}

TEST(Slice, PiecesOfAWideMatrixDoNotShow) {
  // Rows of 80 KB are read in pieces of a few.
  ExpectSlice(RandomBf16(11, 40000, WeightKind::kUniformCodes, 2), {1, 10, 30000, 7});
}

TEST(Slice, SaysWhatIsOffTheBoundary) {
  const auto fp8 =
      std::make_shared<MemoryWeight>(RandomFp8(400, 712, WeightKind::kUniformCodes, 1));
  const auto q2 =
      std::make_shared<MemoryWeight>(RandomQ2(5, 640, WeightKind::kUniformCodes, 1, 128));
  const auto bf16 = std::make_shared<MemoryWeight>(RandomBf16(5, 7, WeightKind::kGaussian, 1));
  const auto refused = [](std::shared_ptr<const WeightSource> source, const SliceRange& range) {
    const auto slice = Slice(std::move(source), range);
    EXPECT_EQ(slice.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(slice.status().message());
  };
  EXPECT_THAT(refused(fp8, {.row = 64}),
              AllOf(HasSubstr("rows"), HasSubstr("begin"), HasSubstr("128")));
  EXPECT_THAT(refused(fp8, {.row = 0, .rows = 399}), AllOf(HasSubstr("rows"), HasSubstr("end")));
  EXPECT_THAT(refused(fp8, {.column = 1}), AllOf(HasSubstr("columns"), HasSubstr("begin")));
  EXPECT_THAT(refused(fp8, {.column = 128, .columns = 64}),
              AllOf(HasSubstr("columns"), HasSubstr("end")));
  EXPECT_THAT(refused(q2, {.column = 64}), AllOf(HasSubstr("columns"), HasSubstr("128")));
  EXPECT_THAT(refused(q2, {.columns = 64}), AllOf(HasSubstr("columns"), HasSubstr("end")));

  EXPECT_THAT(refused(fp8, {.rows = 99999}), HasSubstr("[0, 99999) must be"));
  EXPECT_THAT(refused(fp8, {.row = 128, .rows = 500}), HasSubstr("[128, 628) must be"));

  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  for (const SliceRange range : {SliceRange{.row = 5},
                                 {.row = -1},
                                 {.row = kMin},
                                 {.row = kMax},
                                 {.rows = 0},
                                 {.rows = 6},
                                 {.rows = kMax},
                                 {.rows = -2},
                                 {.row = 4, .rows = kMax},
                                 {.column = 7},
                                 {.column = -1},
                                 {.columns = 0},
                                 {.columns = 8},
                                 {.column = 6, .columns = kMax},
                                 {.columns = kMin}}) {
    EXPECT_FALSE(Slice(bf16, range).ok())
        << range.row << " " << range.rows << " " << range.column << " " << range.columns;
  }
}

}  // namespace
}  // namespace fulcrum::test

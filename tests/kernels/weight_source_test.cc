// Sizes, content hash, finiteness check, and file access: what every weight source relies on.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/weight_source.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "kernels/weights/weight_file.h"
#include "tests/support/random_weights.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::HasSubstr;

std::string HashOf(const WeightSource& source) {
  std::string hex;
  EXPECT_TRUE(ContentHash(source, &hex).ok());
  return hex;
}

TEST(WeightSpec, RowAndTotalBytesByFormat) {
  const WeightSpec fp8{.name = "w", .format = WeightFormat::kFp8Block128, .n = 200, .k = 576};
  EXPECT_EQ(fp8.row_bytes(), 576);
  EXPECT_EQ(fp8.bytes(), 200 * 576 + 4 * 2 * 5);
  const WeightSpec bf16{.name = "w", .format = WeightFormat::kBf16, .n = 3, .k = 5};
  EXPECT_EQ(bf16.bytes(), 3 * 10);
  WeightSpec q2{.name = "w", .format = WeightFormat::kQ2_0, .n = 7, .k = 640};
  EXPECT_EQ(q2.row_bytes(), 10 * 18);
  q2.q2_block = 128;
  EXPECT_EQ(q2.row_bytes(), 5 * 34);
  EXPECT_EQ(q2.bytes(), 7 * 5 * 34);
}

TEST(ContentHash, IsSha256OfAStatedLayout) {
  // printf 'fulcrum weight 1\nbf16 2 2 0\n\1\0\2\0\3\0\4\0' | sha256sum
  const std::vector<uint16_t> values = {1, 2, 3, 4};
  const MemoryWeight weight({.name = "any", .format = WeightFormat::kBf16, .n = 2, .k = 2},
                            ToBytes(ArrayBytes(values)));
  EXPECT_EQ(HashOf(weight), "089242a4f0cd5f6d477844a5248c3c773096115fd6ecfb94e6b595553c139125");
}

TEST(ContentHash, DependsOnContentAloneAndOnAllOfIt) {
  const MemoryWeight weight = RandomFp8(200, 300, WeightKind::kGaussian, 1);
  const std::string hash = HashOf(weight);
  WeightSpec renamed = weight.spec();
  renamed.name = "another";
  const std::vector<std::byte> rows(weight.rows().begin(), weight.rows().end());
  const std::vector<float> scales(weight.scales().begin(), weight.scales().end());
  EXPECT_EQ(HashOf(MemoryWeight(renamed, rows, scales)), hash);

  MemoryWeight last_byte(renamed, rows, scales);
  last_byte.mutable_rows().back() ^= std::byte{1};
  EXPECT_NE(HashOf(last_byte), hash);
  MemoryWeight last_scale(renamed, rows, scales);
  last_scale.mutable_scales().back() *= 2;
  EXPECT_NE(HashOf(last_scale), hash);
  WeightSpec turned = renamed;
  std::swap(turned.n, turned.k);
  EXPECT_NE(HashOf(MemoryWeight(turned, rows, scales)), hash);
}

TEST(ContentHash, PiecesDoNotShow) {
  // 9 MiB of rows: more than one piece, and the last one short.
  const MemoryWeight weight = RandomBf16(1153, 4096, WeightKind::kUniformCodes, 5);
  MemoryWeight changed = weight;
  const std::string hash = HashOf(weight);
  for (const int64_t row : {0, 511, 512, 1023, 1024, 1152}) {
    changed.mutable_rows()[static_cast<size_t>(row) * 8192 + 17] ^= std::byte{4};
    EXPECT_NE(HashOf(changed), hash) << row;
    changed.mutable_rows()[static_cast<size_t>(row) * 8192 + 17] ^= std::byte{4};
  }
  EXPECT_EQ(HashOf(changed), hash);
}

TEST(CheckFinite, NamesTensorRowAndColumnOfAnE4m3NaN) {
  for (const uint8_t nan : {0x7f, 0xff}) {
    MemoryWeight weight = RandomFp8(40, 96, WeightKind::kUniformCodes, 2);
    ASSERT_TRUE(CheckFinite(weight).ok());
    weight.mutable_rows()[33 * 96 + 95] = static_cast<std::byte>(nan);
    const absl::Status status = CheckFinite(weight);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("fp8_uniform_codes"), HasSubstr("row 33"), HasSubstr("column 95")));
  }
}

TEST(CheckFinite, NamesTheBlockOfANonFiniteScale) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    MemoryWeight weight = RandomFp8(300, 300, WeightKind::kUniformCodes, 2);
    weight.mutable_scales()[1 * 3 + 2] = bad;
    const absl::Status status = CheckFinite(weight);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("row 128"), HasSubstr("column 256")));
  }
}

TEST(CheckFinite, AScaleIsRefusedWhereItTakesTheLargestCodeOutOfF32) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float last = std::nextafter(kLargest / 448, 0.0f);
  for (const auto& [scale, fine] : std::vector<std::pair<float, bool>>{{last, true},
                                                                       {-last, true},
                                                                       {7.5e35f, true},
                                                                       {7.6e35f, false},
                                                                       {1e38f, false},
                                                                       {-1e38f, false},
                                                                       {kLargest, false}}) {
    MemoryWeight weight = RandomFp8(130, 300, WeightKind::kUniformCodes, 2);
    weight.mutable_scales()[1 * 3 + 2] = scale;
    // Whatever codes the block has: the answer is the header's, before rows are read.
    for (const absl::Status& status : {CheckFinite(weight), CheckFiniteScales(weight),
                                       CheckServable(weight, /*allow_nan=*/false)}) {
      EXPECT_EQ(status.ok(), fine) << scale;
      if (fine) continue;
      EXPECT_TRUE(absl::IsInvalidArgument(status));
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr("fp8_uniform_codes"), HasSubstr("block [1, 2]"),
                HasSubstr("row 128, column 256"), HasSubstr("448"), HasSubstr("allow_nan")));
    }
    EXPECT_TRUE(CheckServable(weight, /*allow_nan=*/true).ok());
  }
}

TEST(CheckFinite, CountsScalesThatTellSomething) {
  MemoryWeight fp8 = RandomFp8(300, 300, WeightKind::kGaussian, 2);
  const std::vector<float> odd = {
      0.0f, -0.0f, -1.0f, 1e-40f, -1e-40f, std::numeric_limits<float>::quiet_NaN(), 1, 2, 3};
  std::copy(odd.begin(), odd.end(), fp8.mutable_scales().begin());
  ScaleCounts counts;
  EXPECT_FALSE(CheckFinite(fp8, &counts).ok());  // and counted all the same
  EXPECT_EQ(counts.scales, 9);
  EXPECT_EQ(counts.zero, 2);
  EXPECT_EQ(counts.negative, 2);
  EXPECT_EQ(counts.subnormal, 2);

  MemoryWeight q2 = RandomQ2(3, 192, WeightKind::kUniformCodes, 2);
  int at = 0;
  for (const uint16_t d : {0, 0x8000, 0xbc00, 0x0001, 0x7c00, 0xfe00, 0x03ff}) {
    std::memcpy(q2.mutable_rows().data() + at++ * 18, &d, 2);
  }
  counts = {};
  EXPECT_THAT(std::string(CheckFinite(q2, &counts).message()), HasSubstr("row 1, column 64"));
  EXPECT_EQ(counts.scales, 9);
  EXPECT_EQ(counts.zero, 2);
  EXPECT_EQ(counts.negative, 1);  // a NaN with a sign is none
  EXPECT_EQ(counts.subnormal, 2);
  counts = {};
  EXPECT_TRUE(CheckFinite(RandomBf16(3, 7, WeightKind::kGaussian, 2), &counts).ok());
  EXPECT_EQ(counts.scales, 0);
}

TEST(CheckSize, BoundsWhatBackendsTake) {
  const auto check = [](int64_t n, int64_t k) {
    return CheckSize({.name = "w", .format = WeightFormat::kBf16, .n = n, .k = k});
  };
  EXPECT_TRUE(check(1, 1).ok());
  EXPECT_TRUE(check(kMaxWeightN, kMaxWeightK).ok());
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {1, 0}, {-1, 1}, {kMaxWeightN + 1, 1}, {1, kMaxWeightK + 1}}) {
    EXPECT_THAT(std::string(check(n, k).message()), AllOf(HasSubstr("w: "), HasSubstr("slices")));
  }
}

TEST(ContentHash, HasAForm) {
  EXPECT_TRUE(IsContentHash(HashOf(RandomBf16(2, 2, WeightKind::kGaussian, 1))));
  EXPECT_FALSE(IsContentHash(""));
  EXPECT_FALSE(IsContentHash(std::string(63, 'a')));
  EXPECT_FALSE(IsContentHash(std::string(64, 'A')));
}

TEST(CheckFinite, Bf16AndQ2) {
  for (const uint16_t bad : {0x7f80, 0xff80, 0x7fc0, 0xffff}) {
    MemoryWeight weight = RandomBf16(3, 7, WeightKind::kGaussian, 2);
    ASSERT_TRUE(CheckFinite(weight).ok());
    std::memcpy(weight.mutable_rows().data() + (2 * 7 + 4) * 2, &bad, 2);
    EXPECT_THAT(std::string(CheckFinite(weight).message()),
                AllOf(HasSubstr("row 2"), HasSubstr("column 4")));
  }
  MemoryWeight weight = RandomQ2(3, 192, WeightKind::kUniformCodes, 2);
  ASSERT_TRUE(CheckFinite(weight).ok());
  const uint16_t infinite = 0x7c00;
  std::memcpy(weight.mutable_rows().data() + (1 * 3 + 2) * 18, &infinite, 2);
  EXPECT_THAT(std::string(CheckFinite(weight).message()),
              AllOf(HasSubstr("row 1"), HasSubstr("column 128")));
}

TEST(WeightFile, ReadsRangesAndRefusesOthers) {
  const TempDir dir;
  const std::string path = dir.Write("f", "0123456789");
  const auto file = OpenWeightFile(path);
  ASSERT_TRUE(file.ok());
  std::vector<std::byte> two(2);
  ASSERT_TRUE((*file)->Read(8, two).ok());
  EXPECT_EQ(two, ToBytes("89"));
  EXPECT_EQ((*file)->Read(9, two).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ((*file)->Read(~uint64_t{0}, two).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE((*file)->Read(10, {}).ok());
}

TEST(WeightFile, TruncationUnderUsIsDataLossNamingTheFile) {
  const TempDir dir;
  const std::string path = dir.Write("f", std::string(10000, 'x'));
  const auto file = OpenWeightFile(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, 5000);
  std::vector<std::byte> bytes(100);
  for (const uint64_t offset : {9000, 4950, 0}) {
    const absl::Status status = (*file)->Read(offset, bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << offset;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
}

TEST(WeightFile, ChangeInPlaceIsDataLossAndReplacementByRenameIsNot) {
  const TempDir dir;
  const std::string path = dir.Write("f", "old content");
  const auto file = OpenWeightFile(path);
  ASSERT_TRUE(file.ok());
  std::vector<std::byte> bytes(11);

  std::filesystem::rename(dir.Write("new", "new content"), path);
  ASSERT_TRUE((*file)->Read(0, bytes).ok());
  EXPECT_EQ(bytes, ToBytes("old content"));

  const auto second = OpenWeightFile(path);
  ASSERT_TRUE(second.ok());
  dir.Write("f", "NEW CONTENT");
  // Coarse clocks can leave the time as it was; the test sets one that differs.
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_EQ((*second)->Read(0, bytes).code(), absl::StatusCode::kDataLoss);
}

TEST(WeightFile, OpenErrorsSayWhichKind) {
  const TempDir dir;
  EXPECT_EQ(OpenWeightFile(dir.At("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenWeightFile(dir.path()).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(dir.At("pipe").c_str(), 0600), 0);
  EXPECT_EQ(OpenWeightFile(dir.At("pipe")).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fulcrum::test

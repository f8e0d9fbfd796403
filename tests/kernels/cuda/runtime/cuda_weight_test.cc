// Weights on a CUDA device: budget, what is refused, loading in pieces, checksums, lifetime.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/cuda_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/weights/slice.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

using test::MemoryWeight;
using test::WeightKind;
using ::testing::HasSubstr;

TEST(PieceRows, AreGroupsOf128OfAtMost16MiB) {
  constexpr int64_t kMost = int64_t{16} << 20;
  for (const int64_t row_bytes : {1, 100, 5120, 34816, 131072, 131073, 1 << 20}) {
    const int64_t rows = PieceRows(row_bytes);
    EXPECT_EQ(rows % 128, 0);
    EXPECT_GE(rows, 128);
    EXPECT_TRUE(rows == 128 || rows * row_bytes <= kMost) << row_bytes;
    EXPECT_GT((rows + 128) * row_bytes, kMost) << row_bytes << ": could be larger";
  }
}

TEST(CudaWeight, BudgetRefusesNamesTheBytesAndIsGivenBack) {
  const Source source = Synthetic(1000, 1024);
  const int64_t bytes = UploadedWeight::Bytes(source->spec());
  const test::BackendUnderTest cuda = Open(bytes + bytes / 2);
  FULCRUM_NEED_BACKEND(cuda);
  EXPECT_EQ(cuda.backend->device().memory_bytes, bytes + bytes / 2);
  {
    const auto first = cuda.backend->Upload(*source);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ((*first)->resident_bytes(), bytes);
    EXPECT_EQ(cuda.backend->ResidentBytes(source->spec()), bytes);
    const absl::Status refused = cuda.backend->Upload(*source).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("w: needs " + std::to_string(bytes) + " bytes on cuda:0"));
  }
  EXPECT_TRUE(cuda.backend->Upload(*source).ok());
}

TEST(CudaWeight, Q2OfABrokenGeometryIsRefusedByName) {
  for (const auto& [k, block] : {std::pair<int64_t, int>{100, 64}, {192, 128}, {256, 32}}) {
    const MemoryWeight source(
        {.name = "w", .format = WeightFormat::kQ2_0, .n = 16, .k = k, .q2_block = block}, {});
    const absl::Status refused = UploadedWeight::Check(source);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("w: K = " + std::to_string(k)));
  }
}

class FailingSource : public MemoryWeight {
 public:
  using MemoryWeight::MemoryWeight;
  absl::Status ReadRows(int64_t, int64_t, std::span<std::byte>) const override {
    return absl::DataLossError("the file ended");
  }
};

TEST(CudaWeight, ErrorsOfTheSourcePassThroughAndKeepNoMemory) {
  const MemoryWeight whole = test::RandomBf16(200, 512, WeightKind::kGaussian, 1);
  const test::BackendUnderTest cuda = Open(UploadedWeight::Bytes(whole.spec()) + 1);
  FULCRUM_NEED_BACKEND(cuda);
  const FailingSource failing(whole.spec(), {whole.rows().begin(), whole.rows().end()});
  EXPECT_EQ(cuda.backend->Upload(failing).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(cuda.backend->Upload(whole).ok());
  EXPECT_TRUE(cuda.backend->healthy());
}

TEST(CudaWeight, AFlippedBitChangesTheChecksumAndFlippingBackRestoresIt) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  for (const WeightFormat format : kAllWeightFormats) {
    const Source source = Synthetic(1000, format == WeightFormat::kQ2_0 ? 1088 : 1100, format);
    const auto weight = cuda.backend->Upload(*source);
    ASSERT_TRUE(weight.ok()) << weight.status();
    const absl::StatusOr<uint64_t> before = (*weight)->Checksum();
    ASSERT_TRUE(before.ok()) << before.status();
    EXPECT_EQ(*(*weight)->Checksum(), *before);
    const auto again = cuda.backend->Upload(*source);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*(*again)->Checksum(), *before) << "the same rows in other memory";
    const int64_t bytes = (*weight)->resident_bytes();
    for (int64_t byte = 0; byte < bytes; byte += bytes / 97) {
      const int bit = static_cast<int>(byte % 8);
      ASSERT_TRUE((*weight)->FlipBit(byte, bit).ok());
      ASSERT_NE(*(*weight)->Checksum(), *before) << Name(format) << " byte " << byte;
      ASSERT_TRUE((*weight)->FlipBit(byte, bit).ok());
    }
    ASSERT_TRUE((*weight)->FlipBit(bytes - 1, 7).ok());
    EXPECT_NE(*(*weight)->Checksum(), *before);
    ASSERT_TRUE((*weight)->FlipBit(bytes - 1, 7).ok());
    EXPECT_EQ(*(*weight)->Checksum(), *before);
    EXPECT_EQ((*weight)->FlipBit(bytes, 0).code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ((*weight)->FlipBit(0, 8).code(), absl::StatusCode::kOutOfRange);
  }
}

TEST(CudaWeight, WeightsOutliveTheBackend) {
  test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  const auto weight = cuda.backend->Upload(*Synthetic(16, 64, WeightFormat::kBf16));
  ASSERT_TRUE(weight.ok()) << weight.status();
  cuda.backend.reset();
  EXPECT_TRUE((*weight)->Checksum().ok());
}

TEST(CudaWeight, ALoadInSeveralPiecesIsTheSameAsItsParts) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  constexpr int64_t kN = 5000, kK = 8192;
  ASSERT_GT(kN, 2 * PieceRows(kK)) << "three pieces, so that a buffer is used again";
  const Source source = Synthetic(kN, kK);
  const auto whole = cuda.backend->Upload(*source);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const std::vector<uint16_t> x = Gaussian(1, kK);
  const Bytes expected = RunExact(*cuda.backend, **whole, x, 1);
  ASSERT_FALSE(expected.empty());
  for (const int64_t row : {int64_t{0}, PieceRows(kK), 2 * PieceRows(kK), int64_t{4992}}) {
    const int64_t rows = std::min<int64_t>(128, kN - row);
    const auto part = cuda.backend->Upload(**Slice(source, {.row = row, .rows = rows}));
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(RunExact(*cuda.backend, **part, x, 1), Columns(expected, kN, 0, row, rows)) << row;
  }
}

TEST(CudaWeight, ANanCodeIsNoticedInAnyPiece) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  MemoryWeight source = test::RandomFp8(129, 200, WeightKind::kUniformCodes, 1);
  const auto has_nan = [&cuda, &source] {
    const auto weight = cuda.backend->Upload(source);
    EXPECT_TRUE(weight.ok()) << weight.status();
    return weight.ok() && static_cast<const CudaWeight&>(**weight).has_nan();
  };
  EXPECT_FALSE(has_nan());
  source.mutable_rows().back() = std::byte{0xff};
  EXPECT_TRUE(has_nan());
  source.mutable_rows().back() = std::byte{0xfe};
  EXPECT_FALSE(has_nan()) << "found in the upload before";
}

}  // namespace
}  // namespace fulcrum::cuda

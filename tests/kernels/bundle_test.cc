// Bundles come back as they were written, and nothing else is taken for one.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/bundle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/numerics/deviation.h"
#include "tests/support/weight_files.h"

namespace fulcrum::numerics {
namespace {

Bundle Example() {
  return {.found_by = "audit",
          .detail = "a \"quoted\"\nthing",
          .time = "2026-01-01T00:00:00Z",
          .node = "n",
          .device = "cuda:0",
          .shard = "models/m/shards/s",
          .shard_hash = "00ff",
          .shard_version = 7,
          .origin = "synthetic:3",
          .tensor = "w",
          .family = Family::kFfnDown,
          .format = WeightFormat::kFp8Block128,
          .n = 10,
          .k = 4,
          .arm = "w8a16_gemm_m32",
          .numerics = NumericsClass::kMma,
          .step = Step::kPrefill,
          .output_type = DType::kF32,
          .lever_epoch = 9,
          .rows = 2,
          .column = 3,
          .columns = 1,
          .activations = {1, 2, 3, 4, 5, 6, 7, 8},
          .outputs = std::vector<std::byte>(8, std::byte{10})};
}

TEST(Bundle, ComesBackAsItWasWritten) {
  const test::TempDir dir;
  const Bundle bundle = Example();
  ASSERT_TRUE(WriteBundle(bundle, dir.At("b")).ok());
  EXPECT_FALSE(WriteBundle(bundle, dir.At("b")).ok());  // never over another
  const auto read = ReadBundle(dir.At("b"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(EncodeBundle(*read), EncodeBundle(bundle));
  EXPECT_EQ(read->detail, bundle.detail);
  EXPECT_EQ(read->shard_version, 7u);
  EXPECT_EQ(read->activations, bundle.activations);
  EXPECT_EQ(read->outputs, bundle.outputs);
  EXPECT_EQ(read->step, Step::kPrefill);
}

TEST(Bundle, OneThatDoesNotSayTheVersionIsRead) {
  std::string bytes = EncodeBundle(Example());
  const std::string version = "\"shard_version\":7,";
  ASSERT_NE(bytes.find(version), std::string::npos);
  bytes.erase(bytes.find(version), version.size());
  const auto read = DecodeBundle(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->shard_version, 0u);
}

TEST(Bundle, EveryPrefixAndEveryFlippedByteIsRefused) {
  const std::string bytes = EncodeBundle(Example());
  for (size_t kept = 0; kept < bytes.size(); ++kept) {
    EXPECT_EQ(DecodeBundle(bytes.substr(0, kept)).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_FALSE(DecodeBundle(bytes + "x").ok());
  const size_t values = bytes.size() - 24;
  for (size_t at = values; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    EXPECT_FALSE(DecodeBundle(flipped).ok()) << at;
  }
}

TEST(Bundle, ItsDescriptionIsReadToItsEnd) {
  const std::string bytes = EncodeBundle(Example());
  const size_t end = bytes.find("}\n");
  for (const std::string_view behind :
       {std::string_view("\0", 1), std::string_view("\0rubbish", 8), std::string_view("{}")}) {
    std::string more = bytes;
    more.insert(end + 1, behind);
    EXPECT_EQ(DecodeBundle(more).status().code(), absl::StatusCode::kDataLoss);
  }
  std::string twice = bytes;
  twice.insert(end, ",\"rows\":1");
  EXPECT_FALSE(DecodeBundle(twice).ok());
}

TEST(Bundle, ImpossibleSizesAreRefusedBeforeAnythingIsAllocated) {
  for (const auto& change : {+[](Bundle& b) { b.rows = 0; }, +[](Bundle& b) { b.k = -1; },
                             +[](Bundle& b) { b.column = 10; }, +[](Bundle& b) { b.columns = 0; },
                             +[](Bundle& b) { b.k = int64_t{1} << 40; }}) {
    Bundle bundle = Example();
    change(bundle);
    EXPECT_FALSE(DecodeBundle(EncodeBundle(bundle)).ok());
  }
}

TEST(Deviation, MeasuresAgainstTheRowsSize) {
  const std::vector<double> reference = {1, -1, 1, 0x1p-70};
  const std::vector<float> actual = {1, -1, 1.0078125f, 0};
  const Deviation deviation = Measure(reference, actual, 1, DType::kBf16);
  EXPECT_EQ(deviation.max_ulp, 1);  // the tiny value is left out
  EXPECT_GT(deviation.worst_element, 0.0078);
  EXPECT_LT(deviation.worst_element, 0.0092);
  EXPECT_GT(deviation.worst_row, 0.0045);
  EXPECT_LT(deviation.worst_row, 0.0046);
  EXPECT_EQ(Measure(reference, {std::vector<float>{1, -1, 1, 0}}, 1, DType::kBf16).max_ulp, 0);
}

}  // namespace
}  // namespace fulcrum::numerics

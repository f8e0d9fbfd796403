// The safetensors reader: real files read right, hostile ones refused with the cause named. P
// numbers are cases of tests/cases.md.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kernels/weights/checkpoint.h"
#include "kernels/weights/file_source.h"
#include "tests/support/reference_files.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::HasSubstr;

std::string Refusal(std::string_view content) {
  const auto tensors = ParseSafetensors(InMemory(content));
  std::string message(tensors.status().message());
  // Bytes that the header speaks of and that are not there: the file lost them.
  const bool lost = message.find("cut short") != std::string::npos;
  EXPECT_EQ(tensors.status().code(),
            lost ? absl::StatusCode::kDataLoss : absl::StatusCode::kInvalidArgument);
  return message;
}

class Fp8Files : public ::testing::TestWithParam<ReferenceFile> {};

TEST_P(Fp8Files, RowsAndScalesAreThoseOfTheFile) {
  const ReferenceFile& reference = GetParam();
  const MemoryWeight expected = Load(reference);
  ASSERT_FALSE(expected.rows().empty());
  const std::string tensor = std::filesystem::path(reference.stem).filename().string() + ".weight";
  const auto source = OpenTensor(FULCRUM_TEST_DATA "/" + std::string(reference.file), tensor);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->spec().n, reference.n);
  EXPECT_EQ((*source)->spec().k, reference.k);
  EXPECT_EQ((*source)->spec().format, WeightFormat::kFp8Block128);
  const std::vector<std::byte> rows = ReadAll(**source);
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), expected.rows().begin(), expected.rows().end()));
  EXPECT_THAT((*source)->scales(), ::testing::ElementsAreArray(expected.scales()));
  EXPECT_TRUE(CheckFinite(**source).ok());

  // A middle row alone, and rows that are not there.
  std::vector<std::byte> row(static_cast<size_t>(reference.k));
  ASSERT_TRUE((*source)->ReadRows(reference.n - 1, 1, row).ok());
  EXPECT_TRUE(std::equal(row.begin(), row.end(), expected.rows().end() - reference.k));
  EXPECT_FALSE((*source)->ReadRows(reference.n, 1, row).ok());
  EXPECT_FALSE((*source)->ReadRows(-1, 1, row).ok());
  EXPECT_FALSE((*source)->ReadRows(0, 2, row).ok());
  EXPECT_FALSE((*source)->ReadRows(1, std::numeric_limits<int64_t>::max(), row).ok());
}
INSTANTIATE_TEST_SUITE_P(Reference, Fp8Files, ::testing::ValuesIn(kFp8Files));

TEST(Safetensors, P112DuplicateNameIsCalledDuplicate) {
  const std::string entry = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  EXPECT_THAT(Refusal(Safetensors("{" + entry + "," + entry + "}", "1234")),
              HasSubstr("duplicate tensor name 'a'"));
  EXPECT_THAT(Refusal(Safetensors(R"({"__metadata__":{},"__metadata__":{}})", "")),
              HasSubstr("duplicate"));
  EXPECT_THAT(Refusal(Safetensors(
                  R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "")),
              HasSubstr("duplicate field 'dtype'"));
}

TEST(Safetensors, P113OffsetsMustAgreeWithShapeAndType) {
  const std::string refusal = Refusal(
      Safetensors(R"({"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}})", "1234"));
  EXPECT_THAT(refusal, AllOf(HasSubstr("'w'"), HasSubstr("4000000"), HasSubstr("hold 4")));
  // Consistent with its shape, but past the end of the file.
  EXPECT_THAT(
      Refusal(Safetensors(R"({"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4000000]}})",
                          "1234")),
      AllOf(HasSubstr("outside"), HasSubstr("cut short")));
  EXPECT_THAT(
      Refusal(Safetensors(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", "1234")),
      HasSubstr("end before they begin"));
  EXPECT_THAT(
      Refusal(Safetensors(
          R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,0]}})", "1234")),
      HasSubstr("end before they begin"));
}

TEST(Safetensors, P106P111ProductsThatOverflow) {
  const auto refusal = [](std::string_view shape, std::string_view dtype = "F32") {
    return Refusal(Safetensors("{\"w\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":" +
                                   std::string(shape) + ",\"data_offsets\":[0,4]}}",
                               "1234"));
  };
  // 2^42+1 wraps with 2^22 elements a row; the next is 4 modulo 2^64; then four primes whose
  // product is just above 2^64; then a size that only the element width pushes over.
  EXPECT_THAT(refusal("[4398046511105,4194304]"), HasSubstr("overflow"));
  EXPECT_THAT(refusal("[18446744073709551615,2,1,1]"), HasSubstr("overflow"));
  EXPECT_THAT(refusal("[65537,65539,65543,65551]"), HasSubstr("overflow"));
  EXPECT_THAT(refusal("[4611686018427387904]"), HasSubstr("overflow"));
  EXPECT_THAT(refusal("[18446744073709551615,0]"), HasSubstr("overflow"));
  EXPECT_THAT(refusal("[18446744073709551615]", "F8_NEXT"), HasSubstr("overflow"));
  EXPECT_THAT(refusal("[18446744073709551616]"), HasSubstr("not an integer of 64 bits"));
  EXPECT_THAT(refusal("[-1,4]"), HasSubstr("negative"));
  EXPECT_THAT(refusal("[1.5]"), HasSubstr("not an integer"));
}

TEST(Safetensors, P116HeaderLengthIsBoundedBeforeAnythingIsAllocated) {
  const auto with_length = [](uint64_t length) { return LittleEndian(length) + "{}"; };
  EXPECT_THAT(Refusal(with_length(uint64_t{1} << 63)), HasSubstr("above the limit"));
  EXPECT_THAT(Refusal(with_length(101'000'000)), HasSubstr("above the limit"));
  EXPECT_THAT(Refusal(with_length(~uint64_t{0})), HasSubstr("above the limit"));
  EXPECT_THAT(Refusal(with_length(3)), HasSubstr("larger than the file"));
  EXPECT_THAT(Refusal(with_length(0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(Refusal("1234567"), HasSubstr("too few"));
  EXPECT_THAT(Refusal(""), HasSubstr("too few"));
  EXPECT_TRUE(ParseSafetensors(InMemory(with_length(2))).ok());
}

TEST(Safetensors, P110OverlapsHolesAndTrailingBytes) {
  const auto two = [](std::string_view second, std::string_view data) {
    return Safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8",)"
                       R"("shape":[4],"data_offsets":)" +
                           std::string(second) + "}}",
                       data);
  };
  EXPECT_TRUE(ParseSafetensors(InMemory(two("[4,8]", "12345678"))).ok());
  EXPECT_THAT(Refusal(two("[0,4]", "1234")), HasSubstr("overlaps"));
  EXPECT_THAT(Refusal(two("[3,7]", "1234567")), HasSubstr("overlaps"));
  EXPECT_THAT(Refusal(two("[5,9]", "123456789")), HasSubstr("hole"));
  EXPECT_THAT(Refusal(two("[4,8]", "123456789")), HasSubstr("belong to none"));
}

TEST(Safetensors, P127OtherEightBitFloatsAreRefusedByName) {
  // The tensor is, by its name and type; the rest of the file is served.
  for (const std::string dtype : {"F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E3M4"}) {
    const auto contents = ParseSafetensors(InMemory(SafetensorsBuilder()
                                                        .Add("w.weight", dtype, {2, 2}, "1234")
                                                        .Add("x.weight", "BF16", {1, 2}, "1234")
                                                        .Build()));
    ASSERT_TRUE(contents.ok()) << contents.status();
    const TensorInfo& other = contents->tensors[0];
    EXPECT_EQ(other.type, TensorType::kOther);
    EXPECT_EQ(other.dtype, dtype);
    EXPECT_EQ(other.bytes, 4u);
    for (const auto& opened : {OpenPlainWeight(other), OpenFp8Weight(other, nullptr)}) {
      EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(opened.status().message()),
                  AllOf(HasSubstr(dtype), HasSubstr("w.weight"), HasSubstr("E4M3FN")));
    }
    EXPECT_TRUE(OpenPlainWeight(contents->tensors[1]).ok());
  }
}

TEST(Safetensors, P127CodesAreReadAsE4m3fn) {
  // 0x80 is minus zero and 0x7F is NaN in E4M3FN; FNUZ reads them as NaN and 240.
  const std::string grid = ArrayBytes<float>({1.0f});
  const auto open = [&](char code) {
    const auto contents = ParseSafetensors(InMemory(SafetensorsBuilder()
                                                        .Add("s", "F32", {1, 1}, grid)
                                                        .Add("w", "F8_E4M3", {1, 1}, {code})
                                                        .Build()));
    return *OpenFp8Weight(contents->tensors[1], contents->tensors.data());
  };
  EXPECT_TRUE(CheckFinite(*open('\x80')).ok());
  EXPECT_FALSE(CheckFinite(*open('\x7f')).ok());
}

TEST(Safetensors, EmptyTensorsAreListed) {
  const auto contents = ParseSafetensors(InMemory(SafetensorsBuilder()
                                                      .Add("a", "F32", {0, 5}, "")
                                                      .Add("b", "U8", {2}, "xy")
                                                      .Add("c", "BF16", {0}, "")
                                                      .Build()));
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->tensors.size(), 3u);
}

// A small valid file with a pair, for the tests that break it.
std::string PairFile() {
  return SafetensorsBuilder()
      .Add("x.weight_scale_inv", "F32", {2, 1}, ArrayBytes<float>({1, 2}))
      .Add("x.weight", "F8_E4M3", {130, 3}, std::string(390, '\x38'))
      .Build();
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string file = PairFile();
  ASSERT_TRUE(ParseSafetensors(InMemory(file)).ok());
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_FALSE(ParseSafetensors(InMemory(std::string_view(file).substr(0, length))).ok())
        << length;
  }
}

TEST(Safetensors, RandomDamageNeverEscapesTheFile) {
  Rng rng(20240607);
  const std::string file = PairFile();
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = file;
    for (int64_t flips = 1 + rng.Below(4); flips > 0; --flips) {
      // Mostly in the header, where it matters.
      const size_t at = static_cast<size_t>(rng.Below(rng.Below(8) == 0 ? file.size() : 170));
      damaged[at] = static_cast<char>(rng.Next());
    }
    if (rng.Below(16) == 0) damaged.resize(static_cast<size_t>(rng.Below(damaged.size())));
    const auto contents = ParseSafetensors(InMemory(damaged));
    if (!contents.ok()) continue;
    ++parsed;
    for (const TensorInfo& tensor : contents->tensors) {
      std::vector<std::byte> bytes(tensor.bytes);
      EXPECT_TRUE(tensor.file->Read(tensor.offset, bytes).ok());
    }
  }
  EXPECT_GT(parsed, 0);  // damage to data or names leaves a valid file: both ways are walked
}

TEST(SafetensorsPairs, ScaleGridMustBeThereInTypeAndShape) {
  const auto open = [](const std::string& dtype, std::vector<int64_t> shape, size_t bytes) {
    const auto contents = ParseSafetensors(
        InMemory(SafetensorsBuilder()
                     .Add("x.weight_scale_inv", dtype, shape, std::string(bytes, '\0'))
                     .Add("x.weight", "F8_E4M3", {250, 256}, std::string(250 * 256, '\x38'))
                     .Build()));
    EXPECT_TRUE(contents.ok()) << contents.status();
    return OpenFp8Weight(contents->tensors.back(), contents->tensors.data());
  };
  EXPECT_TRUE(open("F32", {2, 2}, 16).ok());
  EXPECT_TRUE(open("BF16", {2, 2}, 8).ok());
  const auto wrong_shape = open("F32", {2, 3}, 24);
  EXPECT_EQ(wrong_shape.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong_shape.status().message()),
              AllOf(HasSubstr("x.weight"), HasSubstr("[2, 2]"), HasSubstr("[2, 3]")));
  EXPECT_FALSE(open("F32", {4}, 16).ok());
  EXPECT_FALSE(open("F32", {1}, 4).ok());
  EXPECT_FALSE(open("F16", {2, 2}, 8).ok());
  EXPECT_FALSE(open("F8_E8M0", {2, 2}, 4).ok());
}

TEST(SafetensorsPairs, P120P122SquareMatricesKeepTheGridAsStored) {
  // An asymmetric grid: its transpose is another matrix. Row r, column c of blocks is 10 r + c + 1.
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{512, 512}, {256, 256}, {250, 256}}) {
    const WeightSpec spec{.name = "", .format = WeightFormat::kFp8Block128, .n = n, .k = k};
    std::vector<float> grid;
    for (int64_t r = 0; r < spec.scale_rows(); ++r) {
      for (int64_t c = 0; c < spec.scale_cols(); ++c)
        grid.push_back(static_cast<float>(10 * r + c + 1));
    }
    std::string codes(static_cast<size_t>(n * k), '\0');
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<char>(i / 128 % 120);
    const TempDir dir;
    const std::string path = dir.Write(
        "w.safetensors", SafetensorsBuilder()
                             .Add("x.weight_scale_inv", "F32",
                                  {spec.scale_rows(), spec.scale_cols()}, ArrayBytes(grid))
                             .Add("x.weight", "F8_E4M3", {n, k}, codes)
                             .Build());
    const auto source = OpenTensor(path, "x.weight");
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->spec().n, n);
    EXPECT_EQ((*source)->spec().k, k);
    EXPECT_THAT((*source)->scales(), ::testing::ElementsAreArray(grid));
    EXPECT_EQ(ReadAll(**source), ToBytes(codes));
  }
}

TEST(SafetensorsPairs, TruncatedAfterOpenIsDataLoss) {
  const TempDir dir;
  const std::string path = dir.Write("w.safetensors", PairFile());
  const auto source = OpenTensor(path, "x.weight");
  ASSERT_TRUE(source.ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 200);
  std::vector<std::byte> row(3);
  EXPECT_EQ((*source)->ReadRows(129, 1, row).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*source)->ReadRows(0, 1, row).code(), absl::StatusCode::kDataLoss);
  std::string hash;
  EXPECT_EQ(ContentHash(**source, &hash).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckFinite(**source).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace fulcrum::test

// The GGUF reader: a real file read right, hostile ones refused with the cause named, and the two
// Q2_0 block sizes told apart by extent alone. P numbers are cases of tests/cases.md.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kernels/weights/checkpoint.h"
#include "kernels/weights/file_source.h"
#include "tests/support/gguf_refusal.h"
#include "tests/support/reference_files.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

enum Value : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

class Q2Files : public ::testing::TestWithParam<ReferenceFile> {};

TEST_P(Q2Files, RowsAreThoseOfTheFileAndDecodeToItsReference) {
  const ReferenceFile& reference = GetParam();
  const MemoryWeight expected = Load(reference);
  ASSERT_FALSE(expected.rows().empty());
  const std::string tensor = std::filesystem::path(reference.stem).filename().string();
  const auto source = OpenTensor(FULCRUM_TEST_DATA "/" + std::string(reference.file), tensor);
  ASSERT_TRUE(source.ok()) << source.status();
  const WeightSpec& spec = (*source)->spec();
  EXPECT_EQ(spec.format, WeightFormat::kQ2_0);
  EXPECT_EQ(spec.n, reference.n);
  EXPECT_EQ(spec.k, reference.k);
  EXPECT_EQ(spec.q2_block, 64);
  const std::vector<std::byte> rows = ReadAll(**source);
  ASSERT_TRUE(std::equal(rows.begin(), rows.end(), expected.rows().begin(), expected.rows().end()));

  const auto values = ReadValues<float>(std::string(reference.stem) + ".dequant.f32");
  ASSERT_EQ(values.size(), static_cast<size_t>(spec.n * spec.k));
  std::vector<float> row(static_cast<size_t>(spec.k));
  for (int64_t n = 0; n < spec.n; ++n) {
    DecodeQ2Row(std::span(rows).subspan(static_cast<size_t>(n * spec.row_bytes()),
                                        static_cast<size_t>(spec.row_bytes())),
                64, row);
    ASSERT_TRUE(std::equal(row.begin(), row.end(), values.begin() + n * spec.k)) << n;
  }
}
INSTANTIATE_TEST_SUITE_P(Reference, Q2Files, ::testing::ValuesIn(kQ2Files));

TEST(Gguf, BothBlockSizesOfType42AreToldApartByExtent) {
  // 6 rows of 256: 24 blocks of 18 bytes, or 12 of 34.
  const auto parse = [](size_t extent, uint64_t n = 6, uint64_t k = 256) {
    return ParseGguf(InMemory(
        GgufBuilder().Tensor("w", {k, n}, kGgufQ2_0, 0).Data(std::string(extent, '\1')).Build()));
  };
  EXPECT_EQ(parse(432)->tensors[0].q2_block, 64);
  EXPECT_EQ(parse(448)->tensors[0].q2_block, 64);  // padded to 32
  EXPECT_EQ(parse(408)->tensors[0].q2_block, 128);
  EXPECT_EQ(parse(416)->tensors[0].q2_block, 128);  // padded
  // Less than 432 bytes at the end of a file is a file cut short; more is another mistake.
  for (const size_t extent : {407, 409, 431, 433, 480, 34, 0}) {
    const auto refused = parse(extent);
    EXPECT_EQ(refused.status().code(),
              extent < 432 ? absl::StatusCode::kDataLoss : absl::StatusCode::kInvalidArgument)
        << extent;
    EXPECT_THAT(std::string(refused.status().message()),
                AllOf(HasSubstr("432"), HasSubstr("408"),
                      HasSubstr("extent is " + std::to_string(extent))));
  }
  // A neighbour that begins too early is no truncation.
  EXPECT_THAT(Refusal(GgufBuilder()
                          .Tensor("w", {256, 6}, kGgufQ2_0, 0)
                          .Tensor("x", {8}, kGgufF32, 384)
                          .Data(std::string(416, '\1'))
                          .Build()),
              AllOf(HasSubstr("neither"), Not(HasSubstr("cut short"))));
  // One block of 128 takes 34 bytes, two of 64 take 36: padded to 64 they are alike.
  const auto unclear = parse(64, 1, 128);
  ASSERT_TRUE(unclear.ok());
  EXPECT_EQ(unclear->tensors[0].q2_block, 0);
  EXPECT_THAT(unclear->tensors[0].undecided,
              AllOf(HasSubstr("both"), HasSubstr("36"), HasSubstr("34")));
  EXPECT_EQ(OpenPlainWeight(unclear->tensors[0]).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parse(34, 1, 128)->tensors[0].q2_block, 128);
  EXPECT_EQ(parse(36, 1, 128)->tensors[0].q2_block, 64);
}

TEST(Gguf, ABlock128FileReadsRowByRow) {
  const MemoryWeight first = RandomQ2(9, 384, WeightKind::kUniformCodes, 3, 128);
  const MemoryWeight second = RandomQ2(4, 192, WeightKind::kUniformCodes, 4, 64);
  std::string data(reinterpret_cast<const char*>(first.rows().data()), first.rows().size());
  data.resize((data.size() + 31) / 32 * 32, '\0');
  const uint64_t second_offset = data.size();
  data.append(reinterpret_cast<const char*>(second.rows().data()), second.rows().size());
  const TempDir dir;
  const std::string path =
      dir.Write("w.gguf", GgufBuilder()
                              .Tensor("blk.0.ffn_up.weight", {384, 9}, 42, 0)
                              .Tensor("blk.0.ffn_down.weight", {192, 4}, 42, second_offset)
                              .Data(data)
                              .Build());
  for (const auto& [name, expected] :
       {std::pair{"blk.0.ffn_up.weight", &first}, {"blk.0.ffn_down.weight", &second}}) {
    const auto source = OpenTensor(path, name);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->spec().q2_block, expected->spec().q2_block);
    const std::vector<std::byte> rows = ReadAll(**source);
    EXPECT_TRUE(
        std::equal(rows.begin(), rows.end(), expected->rows().begin(), expected->rows().end()));
  }
}

TEST(Gguf, MetadataOfEveryTypeIsPassedOver) {
  const std::string strings = LittleEndian<uint32_t>(kString) + LittleEndian<uint64_t>(2) +
                              GgufBuilder::String("a") + GgufBuilder::String("");
  const std::string numbers =
      LittleEndian<uint32_t>(kF64) + LittleEndian<uint64_t>(2) + std::string(16, '\1');
  const std::string nested =
      LittleEndian<uint32_t>(kArray) + LittleEndian<uint64_t>(2) + strings + numbers;
  GgufBuilder builder;
  builder.Pair("u8", kU8, "1")
      .Pair("i8", kI8, "1")
      .Pair("u16", kU16, "12")
      .Pair("i16", kI16, "12")
      .Pair("u32", kU32, "1234")
      .Pair("i32", kI32, "1234")
      .Pair("f32", kF32, "1234")
      .Pair("bool", kBool, "\1")
      .Pair("string", kString, GgufBuilder::String("text"))
      .Pair("u64", kU64, "12345678")
      .Pair("i64", kI64, "12345678")
      .Pair("f64", kF64, "12345678")
      .Pair("strings", kArray, strings)
      .Pair("numbers", kArray, numbers)
      .Pair("nested", kArray, nested)
      .Pair("general.architecture", kString, GgufBuilder::String("qwen3"))
      .Pair("general.alignment", kU32, LittleEndian<uint32_t>(64))
      .Tensor("w", {4}, kGgufF32, 0)
      .Data(std::string(16, '\0'), 64);
  const auto contents = ParseGguf(InMemory(builder.Build()));
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->architecture, "qwen3");
  EXPECT_EQ(contents->alignment, 64u);
  EXPECT_EQ(contents->tensors[0].offset % 64, 0u);
}

TEST(Gguf, P106P111DimensionsWhoseProductOverflows) {
  EXPECT_THAT(RefusedTensor({(uint64_t{1} << 42) + 1, uint64_t{1} << 22}, kGgufF32),
              AllOf(HasSubstr("'bad'"), HasSubstr("overflows")));
  EXPECT_THAT(RefusedTensor({(uint64_t{1} << 42) + 1}, kGgufF32), HasSubstr("'bad'"));
  EXPECT_THAT(RefusedTensor({~uint64_t{0}, 2, 1, 1}, kGgufF32), HasSubstr("overflows"));
  EXPECT_THAT(RefusedTensor({65537, 65539, 65543, 65551}, kGgufF32), HasSubstr("overflows"));
  EXPECT_THAT(RefusedTensor({uint64_t{1} << 62}, kGgufF32), HasSubstr("overflows"));
  EXPECT_THAT(RefusedTensor({uint64_t{1} << 40, 64}, kGgufQ2_0), HasSubstr("neither"));
  EXPECT_THAT(RefusedTensor({~uint64_t{0}, 0}, kGgufF32), HasSubstr("overflows"));
}

TEST(Gguf, P107CountOfDimensionsTypeAndStringLength) {
  // More dimensions than ggml has, and types that nothing knows, are listed (gguf_places_test.cc).
  // A number of dimensions that the file cannot hold is no record.
  std::string dimensions = GgufBuilder().Tensor("bad", {4}, kGgufF32, 0).Data("12345678").Build();
  dimensions.replace(24 + 8 + 3, 4, LittleEndian(~uint32_t{0}));
  EXPECT_THAT(Refusal(dimensions), AllOf(HasSubstr("'bad'"), HasSubstr("4294967295 dimensions")));
  EXPECT_THAT(Refusal(GgufBuilder().Pair("k", 255, "").Build()), HasSubstr("value type 255"));
  EXPECT_THAT(Refusal(GgufBuilder().Pair("k", kString, LittleEndian(uint64_t{1} << 63)).Build()),
              HasSubstr("9223372036854775808"));
  EXPECT_THAT(Refusal(GgufBuilder().Pair("k", kString, LittleEndian(~uint64_t{0})).Build()),
              HasSubstr("claims"));
  // The same length as a key's and as a tensor's name.
  std::string file = GgufBuilder().Pair("key", kU8, "1").Build();
  file.replace(24, 8, LittleEndian(uint64_t{1} << 63));
  EXPECT_THAT(Refusal(file), HasSubstr("metadata key"));
  file = GgufBuilder().Tensor("name", {4}, kGgufF32, 0).Data("0123456789abcdef").Build();
  file.replace(24, 8, LittleEndian(uint64_t{1} << 63));
  EXPECT_THAT(Refusal(file), HasSubstr("tensor name"));
}

TEST(Gguf, P110SizesThatAddUpPast2To64) {
  // Each fits 63 bits; only their sum wraps, to 64 bytes past zero. None of them fits the file.
  GgufBuilder builder;
  for (int i = 0; i < 4; ++i)
    builder.Tensor("t" + std::to_string(i), {uint64_t{1} << 60}, kGgufF32, 0);
  builder.Tensor("rest", {16}, kGgufF32, 0);
  EXPECT_FALSE(ParseGguf(InMemory(builder.Data(std::string(64, 0)).Build())).ok());
  GgufBuilder spread;
  for (uint64_t i = 0; i < 4; ++i) {
    spread.Tensor("t" + std::to_string(i), {uint64_t{1} << 60}, kGgufF32, i << 62);
  }
  spread.Tensor("rest", {16}, kGgufF32, 64);
  EXPECT_FALSE(ParseGguf(InMemory(spread.Data(std::string(128, 0)).Build())).ok());
}

TEST(Gguf, CountsAreBoundedByTheBytesThatAreLeft) {
  for (const uint64_t count : {uint64_t{2}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
    GgufBuilder tensors;
    tensors.Tensor("t", {4}, kGgufF32, 0).Data("0123456789abcdef");
    tensors.tensor_count_ = count;
    EXPECT_FALSE(ParseGguf(InMemory(tensors.Build())).ok()) << count;
    GgufBuilder pairs;
    pairs.Pair("k", kU8, "1");
    pairs.pair_count_ = count;
    EXPECT_FALSE(ParseGguf(InMemory(pairs.Build())).ok()) << count;
    const std::string array = LittleEndian<uint32_t>(kU64) + LittleEndian(count);
    EXPECT_THAT(Refusal(GgufBuilder().Pair("k", kArray, array).Build()), HasSubstr("array claims"));
  }
}

TEST(Gguf, ArraysNestOnlySoDeep) {
  const auto nested = [](int depth) {
    std::string value = LittleEndian<uint32_t>(kU8) + LittleEndian<uint64_t>(0);
    for (int i = 0; i < depth; ++i) {
      value = LittleEndian<uint32_t>(kArray) + LittleEndian<uint64_t>(1) + value;
    }
    return GgufBuilder().Pair("k", kArray, value).Build();
  };
  EXPECT_TRUE(ParseGguf(InMemory(nested(8))).ok());
  EXPECT_THAT(Refusal(nested(1000)), HasSubstr("nested"));
}

TEST(Gguf, MagicVersionAndByteOrder) {
  EXPECT_THAT(Refusal(GgufBuilder(1).Build()), HasSubstr("version 1"));
  EXPECT_THAT(Refusal(GgufBuilder(4).Build()), HasSubstr("version 4"));
  EXPECT_THAT(Refusal(GgufBuilder(0x03000000).Build()), HasSubstr("big-endian"));
  EXPECT_THAT(Refusal("GGML" + std::string(20, '\0')), HasSubstr("not a GGUF"));
  EXPECT_TRUE(ParseGguf(InMemory(GgufBuilder().Build())).ok());
}

std::string SmallFile() {
  return GgufBuilder()
      .Pair("general.architecture", kString, GgufBuilder::String("a"))
      .Pair("list", kArray,
            LittleEndian<uint32_t>(kString) + LittleEndian<uint64_t>(2) + GgufBuilder::String("x") +
                GgufBuilder::String("yz"))
      .Tensor("blk.0.ffn_up.weight", {256, 6}, kGgufQ2_0, 0)
      .Tensor("norm", {5}, kGgufF32, 448)
      .Data(std::string(468, '\1'))
      .Build();
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string file = SmallFile();
  ASSERT_TRUE(ParseGguf(InMemory(file)).ok());
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_FALSE(ParseGguf(InMemory(std::string_view(file).substr(0, length))).ok()) << length;
  }
}

TEST(Gguf, RandomDamageNeverEscapesTheFile) {
  Rng rng(71);
  const std::string small = SmallFile();
  const std::string real = ReadFile(FULCRUM_TEST_DATA "/q2_0/mainline.gguf");
  ASSERT_FALSE(real.empty());
  constexpr int64_t kHeader = 500;  // of the real file, and more than all of the small one's
  int parsed = 0;
  for (int i = 0; i < 12000; ++i) {
    std::string damaged = i % 4 == 0 ? real : small;
    for (int64_t flips = 1 + rng.Below(4); flips > 0; --flips) {
      const auto bound = std::min<int64_t>(kHeader, static_cast<int64_t>(damaged.size()));
      damaged[static_cast<size_t>(rng.Below(bound))] = static_cast<char>(rng.Next());
    }
    const auto contents = ParseGguf(InMemory(damaged));
    if (!contents.ok()) continue;
    ++parsed;
    for (const TensorInfo& tensor : contents->tensors) {
      std::vector<std::byte> bytes(tensor.bytes);
      EXPECT_TRUE(tensor.file->Read(tensor.offset, bytes).ok());
      const auto source = OpenPlainWeight(tensor);
      if (source.ok()) {
        EXPECT_FALSE(ReadAll(**source).empty());
      }
    }
  }
  EXPECT_GT(parsed, 0);
}

TEST(Gguf, TruncatedAfterOpenIsDataLoss) {
  const TempDir dir;
  const std::string path = dir.Write("w.gguf", SmallFile());
  const auto source = OpenTensor(path, "blk.0.ffn_up.weight");
  ASSERT_TRUE(source.ok()) << source.status();
  std::filesystem::resize_file(path, 300);
  std::vector<std::byte> row(72);
  for (const int64_t n : {0, 5}) {
    EXPECT_EQ((*source)->ReadRows(n, 1, row).code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace fulcrum::test

// Where a GGUF file's tensors lie: one rule for every type, and what it makes of tensors whose size
// is not known or that take no place.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/weights/checkpoint.h"
#include "kernels/weights/file_source.h"
#include "kernels/weights/gguf.h"
#include "tests/support/gguf_refusal.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kU8 = 0, kU32 = 4, kString = 8;

TEST(Gguf, TypesForListingAndTypesThatAreSkipped) {
  const auto contents = ParseGguf(InMemory(GgufBuilder(2)
                                               .Tensor("f32", {3, 2}, kGgufF32, 0)
                                               .Tensor("f16", {3, 2}, kGgufF16, 32)
                                               .Tensor("bf16", {3, 2}, kGgufBf16, 64)
                                               .Tensor("q4_k", {256, 1}, 12, 96)
                                               .Tensor("nvfp4", {64, 1}, 40, 256)
                                               .Data(std::string(292, '\0'))
                                               .Build()));
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->version, 2u);
  ASSERT_EQ(contents->tensors.size(), 5u);
  EXPECT_EQ(contents->tensors[0].type, TensorType::kF32);
  EXPECT_EQ(contents->tensors[0].bytes, 24u);
  EXPECT_EQ(contents->tensors[0].shape, (std::vector<int64_t>{2, 3}));  // stored [K, N]
  EXPECT_EQ(contents->tensors[1].type, TensorType::kF16);
  EXPECT_EQ(contents->tensors[2].type, TensorType::kBf16);
  EXPECT_TRUE(OpenPlainWeight(contents->tensors[2]).ok());
  EXPECT_EQ(contents->tensors[3].dtype, "Q4_K");
  EXPECT_EQ(contents->tensors[3].bytes, 144u);
  EXPECT_FALSE(OpenPlainWeight(contents->tensors[3]).ok());
  EXPECT_EQ(contents->tensors[4].type, TensorType::kOther);
  EXPECT_EQ(contents->tensors[4].bytes, 36u);
}

TEST(Gguf, AlignmentOffsetsOverlapsAndDuplicates) {
  for (const uint32_t alignment : {0u, 3u, 48u, 0xffffffffu}) {
    EXPECT_THAT(
        Refusal(GgufBuilder().Pair("general.alignment", kU32, LittleEndian(alignment)).Build()),
        HasSubstr("power of two"));
  }
  EXPECT_THAT(
      Refusal(GgufBuilder().Pair("general.alignment", kString, GgufBuilder::String("32")).Build()),
      HasSubstr("not an unsigned integer"));
  EXPECT_THAT(Refusal(GgufBuilder()
                          .Pair("general.alignment", kU32, LittleEndian(1u << 31))
                          .Tensor("t", {4}, kGgufF32, 0)
                          .Data("0123456789abcdef")
                          .Build()),
              HasSubstr("data begins"));
  EXPECT_THAT(RefusedTensor({4}, kGgufF32, 16), HasSubstr("multiple of the alignment"));
  EXPECT_THAT(RefusedTensor({4}, kGgufF32, 96),
              AllOf(HasSubstr("outside"), HasSubstr("cut short")));
  EXPECT_THAT(RefusedTensor({4}, kGgufF32, ~uint64_t{31}), HasSubstr("outside"));
  EXPECT_THAT(RefusedTensor({17}, kGgufF32, 0),
              AllOf(HasSubstr("end of the data"), HasSubstr("cut short")));
  const auto two = [](const char* second, uint64_t offset) {
    return GgufBuilder()
        .Tensor("a", {12}, kGgufF32, 0)
        .Tensor(second, {4}, kGgufF32, offset)
        .Data(std::string(96, 0))
        .Build();
  };
  EXPECT_TRUE(ParseGguf(InMemory(two("b", 64))).ok());
  EXPECT_THAT(Refusal(two("b", 32)), AllOf(HasSubstr("'a'"), HasSubstr("overlap")));
  EXPECT_THAT(Refusal(two("b", 0)), HasSubstr("overlap"));
  EXPECT_THAT(Refusal(two("a", 64)), HasSubstr("duplicate tensor name 'a'"));
  EXPECT_THAT(Refusal(GgufBuilder().Pair("k", kU8, "1").Pair("k", kU8, "1").Build()),
              HasSubstr("duplicate metadata key 'k'"));
}

// A type, and what six rows of 256 weights take.
struct TypeCase {
  std::string name;
  uint32_t type = 0;
  uint64_t bytes = 0;
};
const TypeCase kTypes[] = {
    {"BF16", kGgufBf16, 3072}, {"F32", kGgufF32, 6144},  {"I8", kGgufI8, 1536}, {"Q4_K", 12, 864},
    {"NVFP4", 40, 864},        {"Q2_0", kGgufQ2_0, 432}, {"Q2_0/128", 42, 408}};

class GgufPlaces : public ::testing::TestWithParam<TypeCase> {
 protected:
  // The tensor "t" at `offset` and a BF16 tensor "u" of 64 bytes at `next`, in `data` bytes.
  std::string File(uint64_t offset, uint64_t next, uint64_t data) const {
    return GgufBuilder()
        .Tensor("t", {256, 6}, GetParam().type, offset)
        .Tensor("u", {32, 1}, kGgufBf16, next)
        .Data(std::string(data, '\1'))
        .Build();
  }
  std::string Last(uint64_t data) const {
    return GgufBuilder()
        .Tensor("t", {256, 6}, GetParam().type, 0)
        .Data(std::string(data, '\1'))
        .Build();
  }
  const uint64_t padded_ = (GetParam().bytes + 31) / 32 * 32;
};

TEST_P(GgufPlaces, OneBehindTheOtherIsRead) {
  const auto contents = ParseGguf(InMemory(File(0, padded_, padded_ + 64)));
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->tensors[0].bytes, GetParam().bytes);
  EXPECT_EQ(contents->tensors[0].undecided, "");
  EXPECT_TRUE(ParseGguf(InMemory(File(64, 0, padded_ + 64))).ok());
  EXPECT_TRUE(ParseGguf(InMemory(Last(GetParam().bytes))).ok());
  EXPECT_TRUE(ParseGguf(InMemory(Last(padded_))).ok());
}

TEST_P(GgufPlaces, AHoleIsRefused) {
  // (32 bytes more are the other block size of Q2_0.)
  for (const uint64_t hole : {64, 96, 4096}) {
    EXPECT_THAT(Refusal(File(0, padded_ + hole, padded_ + hole + 64)),
                AllOf(HasSubstr("'t'"), HasSubstr("hole")))
        << hole;
    EXPECT_THAT(Refusal(File(64 + hole, 0, padded_ + hole + 64)), HasSubstr("hole")) << hole;
    EXPECT_THAT(Refusal(File(hole, padded_ + hole, padded_ + hole + 64)),
                HasSubstr("hole before the first"))
        << hole;
  }
}

TEST_P(GgufPlaces, AnOverlapIsRefused) {
  EXPECT_THAT(Refusal(File(0, 32, padded_ + 64)), AllOf(HasSubstr("'t'"), HasSubstr("overlap")));
  EXPECT_THAT(Refusal(File(0, padded_ - 64, padded_ + 64)), HasSubstr("overlap"));
  EXPECT_THAT(Refusal(File(0, 0, padded_ + 64)), HasSubstr("overlap"));
  EXPECT_THAT(Refusal(File(32, 0, padded_ + 64)), HasSubstr("overlap"));
}

TEST_P(GgufPlaces, TheDataEndsWithTheLastTensor) {
  for (const uint64_t more : {64, 65, 4096}) {
    EXPECT_THAT(Refusal(Last(padded_ + more)), HasSubstr("belong to none")) << more;
  }
  EXPECT_THAT(Refusal(Last(padded_ - 64)), HasSubstr("cut short"));
  EXPECT_THAT(Refusal(Last(0)), HasSubstr("cut short"));
}

TEST_P(GgufPlaces, OffsetsAreMultiplesOfTheAlignment) {
  EXPECT_THAT(Refusal(File(16, padded_ + 32, padded_ + 96)),
              HasSubstr("multiple of the alignment"));
  EXPECT_THAT(Refusal(File(0, padded_ + 8, padded_ + 72)), HasSubstr("multiple of the alignment"));
}

INSTANTIATE_TEST_SUITE_P(Types, GgufPlaces, ::testing::ValuesIn(kTypes), [](const auto& row) {
  std::string name = row.param.name;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

TEST(GgufListed, ATensorOfNoElementsTakesNoPlace) {
  const auto file = [](const std::vector<uint64_t>& dimensions, uint32_t type, uint64_t offset) {
    return GgufBuilder()
        .Tensor("blk.0.ffn_up.weight", {256, 6}, kGgufQ2_0, 0)
        .Tensor("__marker__", dimensions, type, offset)
        .Tensor("blk.0.ffn_down.weight", {16, 1}, kGgufBf16, 448)
        .Data(std::string(480, '\1'))
        .Build();
  };
  // Before the first tensor, inside one, between two and behind the last.
  for (const uint64_t offset : {0, 64, 448, 480}) {
    for (const auto& dimensions : {std::vector<uint64_t>{0}, {0, 4}, {4, 0}, {0, 0, 0, 0, 0}}) {
      for (const uint32_t type : {0u, 30u, 42u, 12u, 999u}) {
        const auto contents = ParseGguf(InMemory(file(dimensions, type, offset)));
        ASSERT_TRUE(contents.ok()) << contents.status();
        ASSERT_EQ(contents->tensors.size(), 3u);
        for (const TensorInfo& tensor : contents->tensors) {
          if (tensor.name == "__marker__") {
            EXPECT_EQ(tensor.bytes, 0u);
            EXPECT_FALSE(OpenPlainWeight(tensor).ok());
          } else {
            EXPECT_TRUE(OpenPlainWeight(tensor).ok()) << tensor.name;
          }
        }
      }
    }
  }
  EXPECT_THAT(Refusal(file({0}, 0, 16)), HasSubstr("multiple of the alignment"));
  EXPECT_THAT(Refusal(file({0}, 0, 512)), HasSubstr("outside"));
  const TempDir dir;
  const auto checkpoint = ImportCheckpoint(dir.Write("w.gguf", file({0}, 0, 480)));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->shards.size(), 2u);
  ASSERT_EQ(checkpoint->skipped.size(), 1u);
  EXPECT_EQ(checkpoint->skipped[0].tensor, "__marker__");
}

TEST(GgufListed, NothingButMarkersAndNothingAtAll) {
  const std::string marker = GgufBuilder().Tensor("m", {0}, kGgufF32, 0).Build();
  EXPECT_TRUE(ParseGguf(InMemory(marker)).ok());
  // A file that ends with its header, without the padding.
  const auto unpadded = ParseGguf(InMemory(std::string_view(marker).substr(0, 24 + 8 + 1 + 24)));
  ASSERT_TRUE(unpadded.ok()) << unpadded.status();
  std::vector<std::byte> none;
  EXPECT_TRUE(unpadded->tensors[0].file->Read(unpadded->tensors[0].offset, none).ok());
  EXPECT_THAT(Refusal(marker + std::string(32, '\1')), HasSubstr("32 bytes behind the header"));
  EXPECT_THAT(Refusal(GgufBuilder().Data("1").Build()), HasSubstr("1 bytes behind the header"));
}

TEST(GgufListed, WhatIsNotKnownEndsWhereTheNextBegins) {
  struct Case {
    std::vector<uint64_t> dimensions;
    uint32_t type;
    const char* reason;
  };
  const Case kCases[] = {{{64, 2}, 999, "unknown type id 999"},
                         {{64, 2}, 4, "unknown type id 4"},  // one that ggml gave up
                         {{64, 2}, 0xffffffff, "unknown type id 4294967295"},
                         {{100, 2}, 12, "rows of 100 do not split into whole blocks of Q4_K"},
                         {{40, 2}, kGgufQ2_0, "rows of 40 do not split into whole blocks of Q2_0"}};
  for (const Case& c : kCases) {
    const auto file = [&c](uint64_t next) {
      return GgufBuilder()
          .Tensor("odd", c.dimensions, c.type, 0)
          .Tensor("blk.0.ffn_down.weight", {16, 1}, kGgufBf16, next)
          .Data(std::string(next + 32, '\1'))
          .Build();
    };
    const auto contents = ParseGguf(InMemory(file(160)));
    ASSERT_TRUE(contents.ok()) << contents.status();
    EXPECT_THAT(contents->tensors[0].undecided, HasSubstr(c.reason));
    EXPECT_EQ(contents->tensors[0].bytes, 160u);
    EXPECT_THAT(std::string(OpenPlainWeight(contents->tensors[0]).status().message()),
                HasSubstr(c.reason));
    EXPECT_TRUE(OpenPlainWeight(contents->tensors[1]).ok());
    // It takes at least a byte.
    EXPECT_THAT(Refusal(file(0)), HasSubstr("overlap"));
    EXPECT_THAT(RefusedTensor(c.dimensions, c.type, 64), HasSubstr("hole before the first"));
    EXPECT_THAT(RefusedTensor(c.dimensions, c.type, 0, 0), HasSubstr("cut short"));
  }
}

TEST(GgufListed, AnyNumberOfDimensions) {
  for (const size_t count : {0, 1, 4, 5, 64}) {
    const std::vector<uint64_t> dimensions(count, 1);
    const auto contents = ParseGguf(InMemory(GgufBuilder()
                                                 .Tensor("many", dimensions, kGgufF32, 0)
                                                 .Tensor("w", {2, 1}, kGgufBf16, 32)
                                                 .Data(std::string(36, '\1'))
                                                 .Build()));
    ASSERT_TRUE(contents.ok()) << contents.status();
    EXPECT_EQ(contents->tensors[0].shape.size(), count);
    EXPECT_EQ(contents->tensors[0].bytes, 4u);
    EXPECT_TRUE(OpenPlainWeight(contents->tensors[1]).ok());
  }
}

TEST(GgufListed, NamesThatCannotTravelAreListedUnderAnother) {
  for (const std::string& name :
       {std::string(), std::string("a\0b", 3), std::string("a\nb"), std::string("\xc3\x28"),
        std::string("\xed\xa0\x80"), std::string("\xf5\x80\x80\x80"), std::string("\xe2\x82"),
        std::string(1025, 'a')}) {
    const auto contents = ParseGguf(InMemory(GgufBuilder()
                                                 .Tensor("w", {2, 1}, kGgufBf16, 0)
                                                 .Tensor(name, {2, 1}, kGgufBf16, 32)
                                                 .Data(std::string(36, '\1'))
                                                 .Build()));
    ASSERT_TRUE(contents.ok()) << contents.status();
    const TensorInfo& odd = contents->tensors[1];
    EXPECT_TRUE(CheckTensorName(odd.name).ok()) << odd.name;
    EXPECT_THAT(odd.name, HasSubstr("#1"));
    EXPECT_THAT(odd.undecided, HasSubstr("name"));
    EXPECT_FALSE(OpenPlainWeight(odd).ok());
    EXPECT_TRUE(OpenPlainWeight(contents->tensors[0]).ok());
  }
}

}  // namespace
}  // namespace fulcrum::test

// Conversion to FP8-block safetensors and Q2_0 GGUF: the formats' own encoders row for row, the
// rest copied byte for byte, files that the readers take back, and nothing left behind on failure.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/formats/q2_0.h"
#include "tests/support/random_weights.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kN = 200, kK = 320;

// The same matrix in every element type that is converted; the values as those types hold them.
struct Matrix {
  std::vector<float> f32, bf16, f16;
  std::string f32_bytes, bf16_bytes, f16_bytes;
};
Matrix RandomMatrix(int64_t n, int64_t k, uint64_t seed) {
  Rng rng(seed);
  Matrix m;
  std::vector<uint16_t> bf16, f16;
  for (int64_t i = 0; i < n * k; ++i) {
    m.f32.push_back(static_cast<float>(rng.Gauss() * 0.02));
    bf16.push_back(F32ToBf16(m.f32.back()));
    f16.push_back(F32ToF16(m.f32.back()));
    m.bf16.push_back(Bf16ToF32(bf16.back()));
    m.f16.push_back(F16ToF32(f16.back()));
  }
  m.f32_bytes = ArrayBytes(m.f32);
  m.bf16_bytes = ArrayBytes(bf16);
  m.f16_bytes = ArrayBytes(f16);
  return m;
}

std::string Model(const Matrix& m) {
  return SafetensorsBuilder()
      .Add("model.layers.0.mlp.gate_proj.weight", "BF16", {kN, kK}, m.bf16_bytes)
      .Add("model.layers.0.mlp.up_proj.weight", "F16", {kN, kK}, m.f16_bytes)
      .Add("model.layers.0.mlp.down_proj.weight", "F32", {kN, kK}, m.f32_bytes)
      .Add("model.layers.0.self_attn.o_proj.weight", "BF16", {5, 12}, m.bf16_bytes.substr(0, 120))
      .Add("lm_head.weight", "BF16", {10, kK}, m.bf16_bytes.substr(0, 20 * kK))
      .Add("model.embed_tokens.weight", "F32", {10, kK}, m.f32_bytes.substr(0, 40 * kK))
      .Add("model.norm.weight", "F32", {3}, m.f32_bytes.substr(0, 12))
      .Add("steps", "I64", {1}, "12345678")
      .Add("mask", "BOOL", {3}, "\1\1\1")
      .Build();
}

std::vector<std::string> NamesOf(const std::vector<SkippedTensor>& list) {
  std::vector<std::string> names;
  for (const SkippedTensor& tensor : list) names.push_back(tensor.tensor);
  return names;
}

std::string BytesOf(const std::string& path, const std::string& tensor) {
  const auto catalog = ReadCatalog(path);
  EXPECT_TRUE(catalog.ok()) << catalog.status();
  const TensorInfo* info = catalog->Find(tensor);
  if (info == nullptr) return "";
  return ReadFile(info->file->path()).substr(info->offset, info->bytes);
}

TEST(Quantize, Fp8SafetensorsEncodesAsTheFormatDoes) {
  const TempDir dir;
  const Matrix m = RandomMatrix(kN, kK, 1);
  const std::string input = dir.Write("in.safetensors", Model(m)),
                    output = dir.At("out.safetensors");
  const auto report = Quantize({.input = input, .output = output});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(
      report->converted,
      ElementsAre("model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.gate_proj.weight",
                  "model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.o_proj.weight"));
  EXPECT_THAT(NamesOf(report->kept),
              ElementsAre("lm_head.weight", "mask", "model.embed_tokens.weight",
                          "model.norm.weight", "steps"));
  EXPECT_TRUE(report->dropped.empty());
  EXPECT_EQ(report->bytes_out, std::filesystem::file_size(output));

  const auto checkpoint = ImportCheckpoint(output);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ(checkpoint->shards.size(), 5u);
  const std::pair<const char*, const std::vector<float>*> kConverted[] = {
      {"model.layers.0.mlp.gate_proj.weight", &m.bf16},
      {"model.layers.0.mlp.up_proj.weight", &m.f16},
      {"model.layers.0.mlp.down_proj.weight", &m.f32}};
  for (const auto& [name, values] : kConverted) {
    std::vector<uint8_t> codes(kN * kK);
    std::vector<float> scales(2 * 3);
    EncodeFp8Block128(*values, kN, kK, codes, scales);
    const auto source = OpenTensor(output, name);
    ASSERT_TRUE(source.ok()) << source.status();
    const std::vector<std::byte> rows = ReadAll(**source);
    EXPECT_EQ(std::memcmp(rows.data(), codes.data(), codes.size()), 0) << name;
    EXPECT_THAT((*source)->scales(), ::testing::ElementsAreArray(scales));
    EXPECT_TRUE(CheckFinite(**source).ok());
  }
  for (const std::string name :
       {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight", "steps", "mask"}) {
    EXPECT_EQ(BytesOf(output, name), BytesOf(input, name)) << name;
  }
  // Every element lies on a multiple of its size, which readers that map the file rely on.
  const auto catalog = ReadCatalog(output);
  for (const TensorInfo& tensor : catalog->tensors) {
    const uint64_t size = tensor.type == TensorType::kF32    ? 4
                          : tensor.type == TensorType::kBf16 ? 2
                                                             : 1;
    EXPECT_EQ(tensor.offset % size, 0u) << tensor.name;
  }
}

TEST(Quantize, Q2GgufEncodesAsTheFormatDoes) {
  const TempDir dir;
  const Matrix m = RandomMatrix(kN, kK, 2);
  const std::string input = dir.Write("in.safetensors", Model(m)), output = dir.At("out.gguf");
  const auto report = Quantize({.input = input, .output = output, .target = WeightFormat::kQ2_0});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->converted, ElementsAre("model.layers.0.mlp.down_proj.weight",
                                             "model.layers.0.mlp.gate_proj.weight",
                                             "model.layers.0.mlp.up_proj.weight"));
  EXPECT_THAT(NamesOf(report->kept),
              ElementsAre("lm_head.weight", "model.embed_tokens.weight",
                          "model.layers.0.self_attn.o_proj.weight", "model.norm.weight", "steps"));
  EXPECT_THAT(report->kept[2].reason, HasSubstr("multiple of 64"));
  EXPECT_THAT(NamesOf(report->dropped), ElementsAre("mask"));
  EXPECT_EQ(report->bytes_out, std::filesystem::file_size(output));
  EXPECT_EQ(report->bytes_out % 32, 0u);

  std::vector<std::byte> row(kK / 64 * 18);
  const auto source = OpenTensor(output, "model.layers.0.mlp.up_proj.weight");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->spec().q2_block, 64);
  const std::vector<std::byte> rows = ReadAll(**source);
  for (int64_t n = 0; n < kN; ++n) {
    EncodeQ2Row(std::span(m.f16).subspan(static_cast<size_t>(n * kK), kK), 64, row);
    ASSERT_TRUE(
        std::equal(row.begin(), row.end(), rows.begin() + n * static_cast<int64_t>(row.size())));
  }
  for (const std::string name : {"lm_head.weight", "model.norm.weight", "steps"}) {
    EXPECT_EQ(BytesOf(output, name), BytesOf(input, name)) << name;
  }
  const auto checkpoint = ImportCheckpoint(output);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->shards.size(), 5u);  // three q2_0, o_proj and the head in BF16
}

TEST(Quantize, TensorsTooSmallToTellTheirBlockAreKept) {
  const TempDir dir;
  const Matrix m = RandomMatrix(1, 128, 3);
  const std::string input =
      dir.Write("in.safetensors",
                SafetensorsBuilder().Add("a.weight", "BF16", {1, 128}, m.bf16_bytes).Build());
  const auto report =
      Quantize({.input = input, .output = dir.At("o.gguf"), .target = WeightFormat::kQ2_0});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->kept.size(), 1u);
  EXPECT_THAT(report->kept[0].reason, HasSubstr("small"));
  EXPECT_TRUE(OpenTensor(dir.At("o.gguf"), "a.weight").ok());
}

TEST(Quantize, PatternsChooseExactly) {
  const TempDir dir;
  const Matrix m = RandomMatrix(kN, kK, 4);
  const std::string input = dir.Write("in.safetensors", Model(m));
  const auto report = Quantize({.input = input,
                                .output = dir.At("o.safetensors"),
                                .convert = {"lm_head.*", "*embed*", "*norm*"}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->converted, ElementsAre("lm_head.weight", "model.embed_tokens.weight"));
  EXPECT_TRUE(OpenTensor(dir.At("o.safetensors"), "lm_head.weight").ok());
}

TEST(Quantize, PatternsThatConvertNothingAreRefusedWithWhatCouldBe) {
  const TempDir dir;
  const std::string input = dir.Write("in.safetensors", Model(RandomMatrix(kN, kK, 4)));
  for (const std::vector<std::string>& convert :
       {std::vector<std::string>{"zzz*"}, {"lm_head.*", "zzz*"}, {"*norm*"}}) {
    const auto report =
        Quantize({.input = input, .output = dir.At("o.safetensors"), .convert = convert});
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(report.status().message()),
        AllOf(HasSubstr("6 can be converted"), HasSubstr("lm_head.weight, "), HasSubstr(", ...")));
    EXPECT_FALSE(std::filesystem::exists(dir.At("o.safetensors")));
  }
}

TEST(Quantize, AnExistingOutputIsReplacedOnlyWhenAsked) {
  const TempDir dir;
  const std::string input = dir.Write("in.safetensors", Model(RandomMatrix(kN, kK, 4)));
  const std::string output = dir.Write("out.safetensors", "what was here");
  EXPECT_EQ(Quantize({.input = input, .output = output}).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(output), "what was here");
  EXPECT_TRUE(Quantize({.input = input, .output = output, .replace = true}).ok());
  EXPECT_TRUE(OpenTensor(output, "lm_head.weight").ok());
}

TEST(Quantize, ReadsShardedDirectories) {
  const TempDir dir;
  const Matrix m = RandomMatrix(4, 64, 5);
  dir.Write("d/a.safetensors",
            SafetensorsBuilder().Add("a.weight", "BF16", {4, 64}, m.bf16_bytes).Build());
  dir.Write("d/b.safetensors",
            SafetensorsBuilder().Add("b.weight", "BF16", {4, 64}, m.bf16_bytes).Build());
  const auto report = Quantize({.input = dir.At("d"), .output = dir.At("o.safetensors")});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->converted, ElementsAre("a.weight", "b.weight"));
}

TEST(Quantize, FailureLeavesTheOutputAsItWas) {
  const TempDir dir;
  Matrix m = RandomMatrix(kN, kK, 6);
  m.f32[150 * kK + 17] = std::numeric_limits<float>::infinity();
  const std::string input =
      dir.Write("in.safetensors",
                SafetensorsBuilder().Add("a.weight", "F32", {kN, kK}, ArrayBytes(m.f32)).Build());
  const std::string output = dir.Write("out.safetensors", "what was here");
  for (const WeightFormat target : {WeightFormat::kFp8Block128, WeightFormat::kQ2_0}) {
    const auto report =
        Quantize({.input = input, .output = output, .replace = true, .target = target});
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(report.status().message()),
                AllOf(HasSubstr("a.weight"), HasSubstr("row 150"), HasSubstr("column 17")));
  }
  EXPECT_EQ(ReadFile(output), "what was here");
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) files += entry.exists();
  EXPECT_EQ(files, 2u);  // no temporary file
}

TEST(Quantize, RefusesWhatMakesNoSense) {
  const TempDir dir;
  const Matrix m = RandomMatrix(4, 64, 7);
  const std::string input =
      dir.Write("in.safetensors",
                SafetensorsBuilder().Add("a.weight", "BF16", {4, 64}, m.bf16_bytes).Build());
  const auto refused = [](const QuantizeOptions& options, absl::StatusCode code) {
    const auto report = Quantize(options);
    EXPECT_EQ(report.status().code(), code) << report.status();
    return std::string(report.status().message());
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refused({.input = input, .output = dir.path() + "/./in.safetensors"}, kInvalid),
              HasSubstr("one of the inputs"));
  refused({.input = input, .output = dir.At("o"), .target = WeightFormat::kBf16}, kInvalid);
  refused({.input = dir.At("none"), .output = dir.At("o")}, absl::StatusCode::kNotFound);
  refused({.input = input, .output = dir.At("no/such/dir/o")}, absl::StatusCode::kNotFound);
  EXPECT_THAT(
      refused({.input = FULCRUM_TEST_DATA "/q2_0/mainline.gguf", .output = dir.At("o")}, kInvalid),
      HasSubstr("gguf"));
  const std::string both =
      dir.Write("both.safetensors", SafetensorsBuilder()
                                        .Add("a.weight", "BF16", {4, 64}, m.bf16_bytes)
                                        .Add("a.weight_scale_inv", "F32", {1}, "1234")
                                        .Build());
  EXPECT_THAT(refused({.input = both, .output = dir.At("o")}, kInvalid), HasSubstr("scale_inv"));
  const std::string long_name(70, 'n');
  const std::string named = dir.Write(
      "long.safetensors",
      SafetensorsBuilder().Add(long_name + ".weight", "BF16", {4, 64}, m.bf16_bytes).Build());
  EXPECT_THAT(
      refused({.input = named, .output = dir.At("o"), .target = WeightFormat::kQ2_0}, kInvalid),
      HasSubstr("63"));
  EXPECT_TRUE(Quantize({.input = named, .output = dir.At("o")}).ok());
}

TEST(Quantize, WhatItWritesIsWhatANodeServes) {
  const TempDir dir;
  constexpr float kLargest = std::numeric_limits<float>::max();
  // Weights up to the end of F32 have a finite scale and codes in fp8, and none in q2_0.
  for (const float largest : {kLargest, -kLargest, 65504.0f, 65519.0f, 65520.0f}) {
    Matrix m = RandomMatrix(64, 128, 8);
    m.f32[3 * 128 + 70] = largest;
    const std::string input = dir.Write(
        "in.safetensors",
        SafetensorsBuilder().Add("a.weight", "F32", {64, 128}, ArrayBytes(m.f32)).Build());
    ASSERT_TRUE(
        Quantize({.input = input, .output = dir.At("o.safetensors"), .replace = true}).ok());
    EXPECT_TRUE(ImportCheckpoint(dir.At("o.safetensors")).ok()) << largest;
    EXPECT_TRUE(CheckFinite(**OpenTensor(dir.At("o.safetensors"), "a.weight")).ok());
    const auto report = Quantize({.input = input,
                                  .output = dir.At("o.gguf"),
                                  .replace = true,
                                  .target = WeightFormat::kQ2_0});
    EXPECT_EQ(report.ok(), std::fabs(largest) < 65520) << largest;  // rounds to F16's largest
    if (report.ok()) {
      EXPECT_TRUE(CheckFinite(**OpenTensor(dir.At("o.gguf"), "a.weight")).ok());
    } else {
      EXPECT_THAT(
          std::string(report.status().message()),
          AllOf(HasSubstr("'a.weight'"), HasSubstr("row 3"), HasSubstr("columns 64 to 127")));
    }
  }
}

TEST(Quantize, RefusesWhatANodeRefusesAndKeepsWhatItSkips) {
  const TempDir dir;
  const Matrix m = RandomMatrix(4, 64, 9);
  const auto add = [&](SafetensorsBuilder builder) {
    return dir.Write("in.safetensors",
                     builder.Add("a.weight", "BF16", {4, 64}, m.bf16_bytes).Build());
  };
  const std::string infinite = ArrayBytes(std::vector<float>{1e38f});
  for (const std::string& grid : {std::string(), infinite}) {
    SafetensorsBuilder builder;
    builder.Add("b.weight", "F8_E4M3", {4, 64}, std::string(256, '\1'));
    if (!grid.empty()) builder.Add("b.weight_scale_inv", "F32", {1, 1}, grid);
    const std::string input = add(builder);
    const absl::Status imported = ImportCheckpoint(input).status();
    EXPECT_FALSE(imported.ok());
    for (const WeightFormat target : {WeightFormat::kFp8Block128, WeightFormat::kQ2_0}) {
      EXPECT_EQ(Quantize({.input = input, .output = dir.At("o"), .target = target}).status(),
                imported);
      EXPECT_FALSE(std::filesystem::exists(dir.At("o")));
    }
  }
  // Names that make no shard name, and one name for two: served neither before nor after.
  const std::string input =
      add(SafetensorsBuilder()
              .Add("b c.weight", "BF16", {4, 64}, m.bf16_bytes)
              .Add("model.layers.0.mlp.up_proj.weight", "F32", {4, 64}, m.f32_bytes)
              .Add("layers.0.mlp.up_proj.weight", "BF16", {4, 64}, m.bf16_bytes));
  const auto report = Quantize({.input = input, .output = dir.At("o")});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->converted, ElementsAre("a.weight"));
  EXPECT_EQ(report->kept.size(), 3u);
  const auto checkpoint = ImportCheckpoint(dir.At("o"));
  ASSERT_TRUE(checkpoint.ok());
  // F32 is skipped for its type, so the BF16 one has the name for itself.
  EXPECT_EQ(checkpoint->shards.size(), 2u);
}

TEST(Quantize, ANameThatGgufCannotHoldLosesACopyNotTheModel) {
  const TempDir dir;
  const Matrix m = RandomMatrix(4, 64, 10);
  const std::string long_name = std::string(70, 'n') + ".bias";
  const std::string input =
      dir.Write("in.safetensors", SafetensorsBuilder()
                                      .Add("a.weight", "BF16", {4, 64}, m.bf16_bytes)
                                      .Add(long_name, "BF16", {64}, m.bf16_bytes.substr(0, 128))
                                      .Build());
  const auto report =
      Quantize({.input = input, .output = dir.At("o.gguf"), .target = WeightFormat::kQ2_0});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(NamesOf(report->dropped), ElementsAre(long_name));
  EXPECT_THAT(report->dropped[0].reason, HasSubstr("75 bytes"));
}

}  // namespace
}  // namespace fulcrum::test

// Synthetic weights: the same bytes whatever is read and wherever, realistic values, and the
// models' sizes.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/formats/q2_0.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

std::shared_ptr<const WeightSource> Make(WeightFormat format, int64_t n, int64_t k,
                                         uint64_t seed = 1, int q2_block = 64,
                                         const std::string& name = "w") {
  const auto source =
      SyntheticWeight({.name = name, .format = format, .n = n, .k = k, .q2_block = q2_block}, seed);
  EXPECT_TRUE(source.ok()) << source.status();
  return *source;
}

TEST(Synthetic, AnyRangeReadsTheSameBytes) {
  for (const auto& source :
       {Make(WeightFormat::kFp8Block128, 37, 301), Make(WeightFormat::kBf16, 37, 301),
        Make(WeightFormat::kQ2_0, 37, 320), Make(WeightFormat::kQ2_0, 37, 384, 1, 128)}) {
    const std::vector<std::byte> all = ReadAll(*source);
    const int64_t row_bytes = source->spec().row_bytes();
    for (const auto& [row, count] :
         {std::pair<int64_t, int64_t>{0, 1}, {36, 1}, {5, 20}, {17, 0}}) {
      std::vector<std::byte> part(static_cast<size_t>(count * row_bytes));
      ASSERT_TRUE(source->ReadRows(row, count, part).ok());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + row * row_bytes));
    }
  }
}

TEST(Synthetic, ContentIsPinned) {
  // A change of these hashes makes nodes and clients of different versions disagree about a seed.
  const std::pair<std::shared_ptr<const WeightSource>, const char*> kPinned[] = {
      {Make(WeightFormat::kFp8Block128, 200, 576, 42),
       "dc3c8cc8473471d7df5dd2dee07396dc51810bfa29dc00a52a1243805ed3e792"},
      {Make(WeightFormat::kBf16, 200, 576, 42),
       "274833bf05ffcf74670f9710c3178a3dc90a165c7ae65c6c78a0bb05767729a9"},
      {Make(WeightFormat::kQ2_0, 200, 576, 42),
       "f915b442266aedd7745e3e31aa7a53aeb1e522592a5c46a8fc9d389276b69192"},
  };
  for (const auto& [source, expected] : kPinned) {
    std::string hex;
    ASSERT_TRUE(ContentHash(*source, &hex).ok());
    EXPECT_EQ(hex, expected);
  }
}

TEST(Synthetic, SeedAndNameMakeOtherBytes) {
  const auto base = ReadAll(*Make(WeightFormat::kFp8Block128, 4, 128));
  EXPECT_NE(base, ReadAll(*Make(WeightFormat::kFp8Block128, 4, 128, 2)));
  EXPECT_NE(base, ReadAll(*Make(WeightFormat::kFp8Block128, 4, 128, 1, 64, "v")));
  EXPECT_EQ(base, ReadAll(*Make(WeightFormat::kFp8Block128, 4, 128)));
  std::set<std::vector<std::byte>> rows;
  for (size_t i = 0; i < 4; ++i)
    rows.insert({base.begin() + i * 128, base.begin() + i * 128 + 128});
  EXPECT_EQ(rows.size(), 4u);
}

TEST(Synthetic, Fp8CodesAreBellShapedCompleteAndFinite) {
  const auto source = Make(WeightFormat::kFp8Block128, 512, 1024);
  EXPECT_TRUE(CheckFinite(*source).ok());
  std::map<int, int> count;
  double sum = 0, squares = 0;
  const std::vector<std::byte> codes = ReadAll(*source);
  for (const std::byte b : codes) {
    const auto code = static_cast<uint8_t>(b);
    ++count[code];
    sum += E4m3ToF32(code);
    squares += E4m3ToF32(code) * E4m3ToF32(code);
  }
  EXPECT_EQ(count.size(),
            254u);  // every finite code, zeros of both signs and subnormals among them
  const double n = static_cast<double>(codes.size());
  EXPECT_LT(std::abs(sum / n), 1.0);  // of a deviation near 100
  EXPECT_GT(std::sqrt(squares / n), 80.0);
  EXPECT_LT(std::sqrt(squares / n), 120.0);
}

TEST(Synthetic, Fp8ScalesAreUniqueSoNoTwoLayoutsAgree) {
  for (const uint64_t seed : {1, 2, 3}) {
    const auto source = Make(WeightFormat::kFp8Block128, 512, 512, seed);
    const auto scales = source->scales();
    EXPECT_EQ(std::set<float>(scales.begin(), scales.end()).size(), 16u);
    for (size_t i = 0; i < 4; ++i) {
      for (size_t j = 0; j < i; ++j) EXPECT_NE(scales[4 * i + j], scales[4 * j + i]);
    }
  }
  const auto large = Make(WeightFormat::kFp8Block128, 17408, 5120);
  EXPECT_EQ(std::set<float>(large->scales().begin(), large->scales().end()).size(), 136u * 40u);
}

TEST(Synthetic, Q2HasEveryCodeAndFiniteVaryingScales) {
  for (const int block : {64, 128}) {
    const auto source = Make(WeightFormat::kQ2_0, 16, 1280, 7, block);
    EXPECT_TRUE(CheckFinite(*source).ok());
    const std::vector<std::byte> rows = ReadAll(*source);
    std::map<int, int> codes;
    std::set<float> scales;
    for (int64_t n = 0; n < 16; ++n) {
      const auto row = std::span(rows).subspan(static_cast<size_t>(n * source->spec().row_bytes()),
                                               static_cast<size_t>(source->spec().row_bytes()));
      for (int64_t i = 0; i < 1280; ++i) ++codes[Q2Code(row, block, i)];
      for (int64_t i = 0; i < 1280; i += block) scales.insert(Q2Scale(row, block, i));
    }
    EXPECT_EQ(codes.size(), 4u);
    EXPECT_GT(codes[3], 100);  // the code that no quantiser writes
    EXPECT_GT(codes[1], codes[3]);
    EXPECT_GT(scales.size(), static_cast<size_t>(16 * 1280 / block * 9 / 10));
    EXPECT_GT(*scales.begin(), 0.0f);
  }
}

TEST(Synthetic, RefusesSizesTheFormatCannotHave) {
  const auto refused = [](WeightSpec spec) {
    EXPECT_EQ(SyntheticWeight(spec, 1).status().code(), absl::StatusCode::kInvalidArgument);
  };
  refused({.name = "w", .format = WeightFormat::kBf16, .n = 0, .k = 5});
  refused({.name = "w", .format = WeightFormat::kBf16, .n = 5, .k = -1});
  refused(
      {.name = "w", .format = WeightFormat::kBf16, .n = int64_t{1} << 40, .k = int64_t{1} << 40});
  refused({.name = "w", .format = WeightFormat::kQ2_0, .n = 5, .k = 100});
  refused({.name = "w", .format = WeightFormat::kQ2_0, .n = 5, .k = 64, .q2_block = 128});
  refused({.name = "w", .format = WeightFormat::kQ2_0, .n = 5, .k = 64, .q2_block = 32});
}

int64_t Bytes(const std::vector<NamedWeight>& model) {
  int64_t bytes = 0;
  for (const NamedWeight& weight : model) bytes += weight.source->spec().bytes();
  return bytes;
}

TEST(SyntheticModel, SmallHasEveryFamilyEveryFormatAndRaggedSizes) {
  const auto model = SyntheticModel("small", 1);
  ASSERT_TRUE(model.ok()) << model.status();
  std::set<Family> families;
  std::set<WeightFormat> formats;
  std::set<std::string> names;
  bool ragged_n = false, ragged_k = false;
  for (const NamedWeight& weight : *model) {
    families.insert(weight.family);
    formats.insert(weight.source->spec().format);
    names.insert(weight.shard);
    ragged_n = ragged_n || weight.source->spec().n % 128 != 0;
    ragged_k = ragged_k || weight.source->spec().k % 128 != 0;
    EXPECT_TRUE(CheckFinite(*weight.source).ok()) << weight.shard;
  }
  EXPECT_EQ(families.size(), kAllFamilies.size());
  EXPECT_EQ(formats.size(), kAllWeightFormats.size());
  EXPECT_EQ(names.size(), model->size());
  EXPECT_TRUE(ragged_n && ragged_k);
  EXPECT_LT(Bytes(*model), 10 << 20);
}

TEST(SyntheticModel, Qwen27bHasItsLayersAndSizes) {
  const auto model = SyntheticModel("qwen-27b", 1);
  ASSERT_TRUE(model.ok()) << model.status();
  std::map<Family, int> count;
  std::map<std::string, const WeightSpec*> specs;
  for (const NamedWeight& weight : *model) {
    ++count[weight.family];
    specs[weight.shard] = &weight.source->spec();
  }
  EXPECT_EQ(specs.size(), model->size());
  EXPECT_EQ(count[Family::kFfnGateUp], 128);
  EXPECT_EQ(count[Family::kFfnDown], 64);
  EXPECT_EQ(count[Family::kAttnQkv], 48);
  EXPECT_EQ(count[Family::kAttnO], 16);
  EXPECT_EQ(count[Family::kSsmIn], 48);
  EXPECT_EQ(count[Family::kSsmOut], 48);
  EXPECT_EQ(count[Family::kLmHead], 1);
  const std::tuple<std::string, int64_t, int64_t> kSizes[] = {
      {"layers.0.ssm_in", 16384, 5120},   {"layers.62.ssm_out", 5120, 6144},
      {"layers.3.attn_q", 6144, 5120},    {"layers.63.attn_k", 1024, 5120},
      {"layers.7.attn_v", 1024, 5120},    {"layers.11.attn_o", 5120, 6144},
      {"layers.5.ffn_gate", 17408, 5120}, {"layers.5.ffn_up", 17408, 5120},
      {"layers.5.ffn_down", 5120, 17408}, {"lm_head", 248077, 5120}};
  for (const auto& [name, n, k] : kSizes) {
    ASSERT_TRUE(specs.contains(name)) << name;
    EXPECT_EQ(specs[name]->n, n) << name;
    EXPECT_EQ(specs[name]->k, k) << name;
  }
  EXPECT_EQ(specs["lm_head"]->format, WeightFormat::kBf16);
  EXPECT_FALSE(specs.contains("layers.3.ssm_in"));
  EXPECT_FALSE(specs.contains("layers.4.attn_q"));
}

TEST(SyntheticModel, ChosenLayersAreThoseOfTheWholeModel) {
  const auto names = [](std::string_view model) {
    std::vector<std::string> shards;
    const auto weights = SyntheticModel(model, 1);
    EXPECT_TRUE(weights.ok()) << weights.status();
    for (const NamedWeight& weight : *weights) shards.push_back(weight.shard);
    return shards;
  };
  EXPECT_THAT(names("qwen-27b:0,3"),
              ::testing::ElementsAre("layers.0.ssm_in", "layers.0.ssm_out", "layers.0.ffn_gate",
                                     "layers.0.ffn_up", "layers.0.ffn_down", "layers.3.attn_q",
                                     "layers.3.attn_k", "layers.3.attn_v", "layers.3.attn_o",
                                     "layers.3.ffn_gate", "layers.3.ffn_up", "layers.3.ffn_down"));
  EXPECT_EQ(names("qwen-27b:0-3").size(), 3u * 5 + 7);
  EXPECT_EQ(names("qwen-27b:0-3,2,lm_head").size(), 3u * 5 + 7 + 1);
  EXPECT_THAT(names("qwen-27b:lm_head"), ::testing::ElementsAre("lm_head"));

  const auto all = SyntheticModel("qwen-27b", 1), one = SyntheticModel("qwen-27b:3", 1);
  std::vector<std::byte> a(5120), b(5120);
  const auto it = std::find_if(all->begin(), all->end(),
                               [](const NamedWeight& w) { return w.shard == "layers.3.attn_q"; });
  ASSERT_TRUE(it->source->ReadRows(6143, 1, a).ok());
  ASSERT_TRUE(one->front().source->ReadRows(6143, 1, b).ok());
  EXPECT_EQ(a, b);
}

TEST(SyntheticModel, RefusesWhatItDoesNotKnow) {
  for (const std::string_view model :
       {"", "big", "small:0", "qwen-27b:", "qwen-27b:64", "qwen-27b:-1", "qwen-27b:3-1",
        "qwen-27b:1-", "qwen-27b:1,,2", "qwen-27b:1x", "qwen-27b:head", "qwen-27b:99999999999"}) {
    EXPECT_EQ(SyntheticModel(model, 1).status().code(), absl::StatusCode::kInvalidArgument)
        << model;
  }
}

}  // namespace
}  // namespace fulcrum::test

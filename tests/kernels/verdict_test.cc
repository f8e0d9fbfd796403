// The loader's rules, one by one, and what of them holds for a tensor that is named explicitly.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kernels/weights/checkpoint.h"
#include "kernels/weights/inspect.h"
#include "kernels/weights/name_part.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kUp[] = "model.layers.0.mlp.up_proj.weight";

std::string Bf16(int64_t n, int64_t k) {
  return std::string(static_cast<size_t>(2 * n * k), '\x3f');
}
std::string Scale(float scale) { return ArrayBytes(std::vector<float>{scale}); }

class Judged : public ::testing::Test {
 protected:
  // The catalog of a file with these tensors.
  const TensorCatalog& Catalog(const SafetensorsBuilder& builder) {
    const auto catalog = ReadCatalog(dir_.Write("w.safetensors", builder.Build()));
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    if (catalog.ok()) catalog_ = *catalog;
    return catalog_;
  }
  TensorInfo& Tensor(const std::string& name) {
    return *std::find_if(catalog_.tensors.begin(), catalog_.tensors.end(),
                         [&](const TensorInfo& t) { return t.name == name; });
  }
  std::map<std::string, Verdict> Judge(const JudgeOptions& options = {}) const {
    const std::vector<Verdict> verdicts = JudgeAll(catalog_, options);
    std::map<std::string, Verdict> by_name;
    for (size_t i = 0; i < verdicts.size(); ++i) by_name[catalog_.tensors[i].name] = verdicts[i];
    return by_name;
  }
  static std::string Why(const Verdict& verdict) { return std::string(verdict.why.message()); }
  std::string PathError() const { return dir_.At("w.safetensors"); }

  TempDir dir_;
  TensorCatalog catalog_;
};

TEST_F(Judged, NamesThatMakeNoShardNameAreSkippedWithAWordHowToLoadThem) {
  const std::vector<std::string> odd = {
      "a b.weight",
      "model.layers.0.a/b.weight",
      "..weight",
      "...weight",
      ".weight",
      "\u00e9t\u00e9.weight",
      "a:b.weight",
      std::string(kMaxShardLeaf + 1, 'n') + ".weight",
      "model.layers.7." + std::string(kMaxShardLeaf - 8, 'x') + ".weight"};
  const std::vector<std::string> fine = {
      ".hidden.weight", "weight.weight", std::string(kMaxShardLeaf, 'n') + ".weight",
      "model.layers.7." + std::string(kMaxShardLeaf - 9, 'x') + ".weight"};
  SafetensorsBuilder builder;
  for (const std::string& name : odd) builder.Add(name, "BF16", {1, 1}, Bf16(1, 1));
  for (const std::string& name : fine) builder.Add(name, "BF16", {1, 1}, Bf16(1, 1));
  Catalog(builder);
  const auto verdicts = Judge();
  for (const std::string& name : odd) {
    EXPECT_EQ(verdicts.at(name).fate, Fate::kSkipped) << name;
    EXPECT_THAT(Why(verdicts.at(name)),
                AllOf(HasSubstr("no legal shard name"), HasSubstr("[A-Za-z0-9._-]"),
                      HasSubstr("LoadShard"), HasSubstr("shards { shard {")));
    EXPECT_TRUE(OpenTensor(catalog_, name).ok()) << name;  // by name its own name does not matter
  }
  for (const std::string& name : fine) {
    EXPECT_EQ(verdicts.at(name).fate, Fate::kServed) << name;
    EXPECT_TRUE(CheckShardLeaf(verdicts.at(name).weight.shard).ok());
  }
}

TEST_F(Judged, WhatTheReadersSayBecomesAVerdict) {
  Catalog(SafetensorsBuilder()
              .Add(kUp, "BF16", {2, 2}, Bf16(2, 2))
              .Add("lm_head.weight", "BF16", {2, 2}, Bf16(2, 2))
              .Add("model.norm.weight", "BF16", {2, 2}, Bf16(2, 2))
              .Add("a b.weight", "BF16", {2, 2}, Bf16(2, 2)));
  Tensor(kUp).undecided = "the index does not name it";
  Tensor("lm_head.weight").refused = "config.json says otherwise";
  Tensor("model.norm.weight").refused = Tensor("a b.weight").refused = "config.json says otherwise";
  const auto verdicts = Judge();
  EXPECT_EQ(verdicts.at(kUp).fate, Fate::kSkipped);
  EXPECT_EQ(Why(verdicts.at(kUp)), "the index does not name it");
  EXPECT_EQ(verdicts.at("lm_head.weight").fate, Fate::kRefused);
  EXPECT_THAT(Why(verdicts.at("lm_head.weight")),
              AllOf(HasSubstr(PathError()), HasSubstr("'lm_head.weight'"),
                    HasSubstr("config.json says otherwise")));
  // A tensor that import does not use refuses nothing.
  EXPECT_EQ(verdicts.at("model.norm.weight").fate, Fate::kSkipped);
  EXPECT_EQ(verdicts.at("a b.weight").fate, Fate::kSkipped);
  // Asked for by name, all of them are errors.
  for (const TensorInfo& tensor : catalog_.tensors) {
    const absl::Status status = OpenTensor(catalog_, tensor.name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(tensor.name), HasSubstr(PathError())));
  }
}

TEST_F(Judged, ScalesThatOverflowRefuseTheCheckpointUnlessAllowed) {
  for (const auto& [scale, fine] :
       std::vector<std::pair<float, bool>>{{7.5e35f, true}, {1e38f, false}, {-1e38f, false}}) {
    Catalog(SafetensorsBuilder()
                .Add(kUp, "F8_E4M3", {2, 2}, std::string(4, '\0'))
                .Add(std::string(kUp) + "_scale_inv", "F32", {1, 1}, Scale(scale)));
    const Verdict verdict = Judge().at(kUp);
    EXPECT_EQ(verdict.fate, fine ? Fate::kServed : Fate::kRefused) << scale;
    EXPECT_EQ(Judge({.allow_nan = true}).at(kUp).fate, Fate::kServed);
    EXPECT_EQ(ImportCheckpoint(PathError()).ok(), fine);
    EXPECT_TRUE(ImportCheckpoint(PathError(), /*allow_nan=*/true).ok());
    if (fine) continue;
    EXPECT_THAT(Why(verdict),
                AllOf(HasSubstr(PathError()), HasSubstr(kUp), HasSubstr("block [0, 0]")));
  }
}

TEST_F(Judged, AGridBesideAWeightWithoutScalesIsARefusal) {
  Catalog(SafetensorsBuilder()
              .Add(kUp, "BF16", {2, 2}, Bf16(2, 2))
              .Add(std::string(kUp) + "_scale_inv", "F32", {1, 1}, Scale(1)));
  EXPECT_EQ(Judge().at(kUp).fate, Fate::kRefused);
  EXPECT_THAT(Why(Judge().at(kUp)), HasSubstr("_scale_inv"));
  EXPECT_FALSE(OpenTensor(catalog_, kUp).ok());
}

TEST_F(Judged, WhatIsLargerThanBackendsTakeIsSkippedAndServedInSlices) {
  const int64_t k = kMaxWeightK + 1;
  Catalog(SafetensorsBuilder()
              .Add(kUp, "BF16", {1, k}, Bf16(1, k))
              .Add("lm_head.weight", "BF16", {1, kMaxWeightK}, Bf16(1, kMaxWeightK)));
  EXPECT_EQ(Judge().at(kUp).fate, Fate::kSkipped);
  EXPECT_THAT(Why(Judge().at(kUp)), AllOf(HasSubstr("larger than is served"), HasSubstr("slices")));
  EXPECT_EQ(Judge().at("lm_head.weight").fate, Fate::kServed);
  const auto whole = OpenTensor(catalog_, kUp);
  ASSERT_TRUE(whole.ok());
  EXPECT_FALSE(CheckServable(**whole, /*allow_nan=*/true).ok());
}

TEST_F(Judged, WhereNothingIsLeftToServeTheReasonsAreSummedUp) {
  Catalog(SafetensorsBuilder()
              .Add("model.norm.weight", "BF16", {2}, Bf16(1, 2))
              .Add("model.layers.0.input_layernorm.weight", "BF16", {2}, Bf16(1, 2))
              .Add("model.embed_tokens.weight", "BF16", {2, 2}, Bf16(2, 2)));
  const auto inspection = Inspect(PathError());
  ASSERT_TRUE(inspection.ok());
  for (const absl::Status& status : {CheckImport(catalog_, JudgeAll(catalog_, {})),
                                     ImportCheckpoint(PathError()).status(), inspection->refusal}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("no tensor that can be served"),
                                                     HasSubstr("3 skipped: 2 norm, 1 embedding")));
  }
}

TEST_F(Judged, SeveralRefusedTensorsAreCountedBehindTheFirst) {
  Catalog(SafetensorsBuilder()
              .Add(kUp, "F8_E4M3", {2, 2}, "1234")
              .Add("lm_head.weight", "F8_E4M3", {2, 2}, "1234"));
  const absl::Status status = CheckRefused(catalog_, JudgeAll(catalog_, {}));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("lm_head.weight"), HasSubstr("and 1 more")));
}

TEST_F(Judged, ForConversionFloatsCountAsServed) {
  Catalog(SafetensorsBuilder()
              .Add(kUp, "F32", {1, 1}, Scale(1))
              .Add("layers.0.mlp.up_proj.weight", "BF16", {1, 1}, Bf16(1, 1))
              .Add("lm_head.weight", "F16", {1, 1}, Bf16(1, 1)));
  EXPECT_EQ(Judge().at(kUp).fate, Fate::kSkipped);
  EXPECT_EQ(Judge().at("layers.0.mlp.up_proj.weight").fate, Fate::kServed);
  const auto verdicts = Judge({.convert = true});
  EXPECT_EQ(verdicts.at("lm_head.weight").fate, Fate::kServed);
  EXPECT_EQ(verdicts.at("lm_head.weight").weight.source, nullptr);
  // Converted, both would ask for one shard name.
  EXPECT_THAT(Why(verdicts.at(kUp)), HasSubstr("ambiguous"));
  EXPECT_THAT(Why(verdicts.at("layers.0.mlp.up_proj.weight")), HasSubstr("ambiguous"));
}

TEST(SkippedTensors, AreCountedByTheKindOfTheirReason) {
  const std::vector<SkippedTensor> skipped = {{"a", "norm"},
                                              {"b", "ambiguous: shard name x fits b, c"},
                                              {"c", "ambiguous: shard name x fits b, c"},
                                              {"d", "ambiguous: shard name y fits d, e"},
                                              {"e", "norm"}};
  const std::vector<SkipCount> counts = CountByReason(skipped);
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts[0].reason, "ambiguous");
  EXPECT_EQ(counts[0].count, 3u);
  EXPECT_EQ(counts[0].example, "b");
  EXPECT_EQ(counts[1].reason, "norm");
  EXPECT_EQ(SkipSummary(skipped), "5 skipped: 3 ambiguous, 2 norm");
  EXPECT_EQ(SkipSummary({}), "0 skipped");
}

}  // namespace
}  // namespace fulcrum::test

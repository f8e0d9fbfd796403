// Importing checkpoints: directories, indexes and single files; names to shards; what is skipped
// and why; what is an error.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kernels/weights/inspect.h"
#include "kernels/weights/tensor_names.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Bf16(int64_t n, int64_t k) {
  return std::string(static_cast<size_t>(2 * n * k), '\x3c');
}
std::string Fp8(int64_t n, int64_t k) { return std::string(static_cast<size_t>(n * k), '\x38'); }
std::string One() { return ArrayBytes<float>({1.5f}); }

std::vector<std::string> Names(const std::vector<NamedWeight>& shards) {
  std::vector<std::string> names;
  for (const NamedWeight& shard : shards) names.push_back(shard.shard);
  return names;
}
std::map<std::string, std::string> Reasons(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> reasons;
  for (const SkippedTensor& skipped : checkpoint.skipped) reasons[skipped.tensor] = skipped.reason;
  return reasons;
}
std::string ImportError(const std::string& path, absl::StatusCode code) {
  const auto checkpoint = ImportCheckpoint(path);
  EXPECT_EQ(checkpoint.status().code(), code) << checkpoint.status();
  return std::string(checkpoint.status().message());
}

struct Expected {
  std::string tensor, shard;
  Family family;
  int layer;
};

TEST(TensorNames, ProjectionsOfEverySpelling) {
  const Expected kRows[] = {
      {"model.layers.3.self_attn.q_proj.weight", "layers.3.attn_q", Family::kAttnQkv, 3},
      {"model.layers.3.self_attn.k_proj.weight", "layers.3.attn_k", Family::kAttnQkv, 3},
      {"model.layers.3.self_attn.v_proj.weight", "layers.3.attn_v", Family::kAttnQkv, 3},
      {"model.layers.3.self_attn.qkv_proj.weight", "layers.3.attn_qkv", Family::kAttnQkv, 3},
      {"model.layers.60.self_attn.q_a_proj.weight", "layers.60.attn_q_a", Family::kAttnQkv, 60},
      {"model.layers.60.self_attn.q_b_proj.weight", "layers.60.attn_q_b", Family::kAttnQkv, 60},
      {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "layers.0.attn_kv_a", Family::kAttnQkv,
       0},
      {"model.layers.0.self_attn.kv_b_proj.weight", "layers.0.attn_kv_b", Family::kAttnQkv, 0},
      {"model.layers.0.self_attn.o_proj.weight", "layers.0.attn_o", Family::kAttnO, 0},
      {"model.layers.1.linear_attn.in_proj_qkvz.weight", "layers.1.ssm_in_qkvz", Family::kSsmIn, 1},
      {"model.layers.1.linear_attn.in_proj_ba.weight", "layers.1.ssm_in_ba", Family::kSsmIn, 1},
      {"model.layers.1.linear_attn.in_proj.weight", "layers.1.ssm_in", Family::kSsmIn, 1},
      {"model.layers.1.linear_attn.out_proj.weight", "layers.1.ssm_out", Family::kSsmOut, 1},
      {"model.layers.1.mamba.in_proj.weight", "layers.1.ssm_in", Family::kSsmIn, 1},
      {"backbone.layers.1.mixer.out_proj.weight", "layers.1.ssm_out", Family::kSsmOut, 1},
      {"model.language_model.layers.9.mlp.gate_proj.weight", "layers.9.ffn_gate",
       Family::kFfnGateUp, 9},
      {"language_model.model.layers.9.mlp.up_proj.weight", "layers.9.ffn_up", Family::kFfnGateUp,
       9},
      {"layers.9.mlp.gate_up_proj.weight", "layers.9.ffn_gate_up", Family::kFfnGateUp, 9},
      {"model.layers.9.mlp.down_proj.weight", "layers.9.ffn_down", Family::kFfnDown, 9},
      {"model.layers.9.mlp.shared_expert.gate_proj.weight", "layers.9.shared_expert_gate",
       Family::kSharedExpert, 9},
      {"model.layers.9.mlp.shared_experts.down_proj.weight", "layers.9.shared_expert_down",
       Family::kSharedExpert, 9},
      {"lm_head.weight", "lm_head", Family::kLmHead, -1},
      {"blk.12.attn_q.weight", "layers.12.attn_q", Family::kAttnQkv, 12},
      {"blk.12.attn_qkv.weight", "layers.12.attn_qkv", Family::kAttnQkv, 12},
      {"blk.12.attn_output.weight", "layers.12.attn_o", Family::kAttnO, 12},
      {"blk.12.ssm_in.weight", "layers.12.ssm_in", Family::kSsmIn, 12},
      {"blk.12.ssm_out.weight", "layers.12.ssm_out", Family::kSsmOut, 12},
      {"blk.12.ffn_gate.weight", "layers.12.ffn_gate", Family::kFfnGateUp, 12},
      {"blk.12.ffn_up.weight", "layers.12.ffn_up", Family::kFfnGateUp, 12},
      {"blk.12.ffn_down.weight", "layers.12.ffn_down", Family::kFfnDown, 12},
      {"blk.12.ffn_down_shexp.weight", "layers.12.shared_expert_down", Family::kSharedExpert, 12},
      {"output.weight", "lm_head", Family::kLmHead, -1},
      // Known to be projections, not known which.
      {"model.layers.4.mlp.gate.weight", "layers.4.mlp.gate", Family::kOther, 4},
      {"blk.4.attn_gate.weight", "layers.4.attn_gate", Family::kOther, 4},
      {"model.layers.4.linear_attn.in_projection.weight", "layers.4.linear_attn.in_projection",
       Family::kOther, 4},
      {"model.vision_tower.layers.0.self_attn.q_proj.weight",
       "model.vision_tower.layers.0.self_attn.q_proj", Family::kOther, -1},
      {"mtp.fc.weight", "mtp.fc", Family::kOther, -1},
      {"model.layers.x.self_attn.q_proj.weight", "model.layers.x.self_attn.q_proj", Family::kOther,
       -1},
      {"model.layers.-1.self_attn.q_proj.weight", "model.layers.-1.self_attn.q_proj",
       Family::kOther, -1},
      {"model.layers.99999999999.mlp.up_proj.weight", "model.layers.99999999999.mlp.up_proj",
       Family::kOther, -1},
  };
  for (const Expected& row : kRows) {
    const TensorRole role = RoleOf(row.tensor);
    EXPECT_EQ(role.skip, "") << row.tensor;
    EXPECT_EQ(role.shard, row.shard) << row.tensor;
    EXPECT_EQ(role.family, row.family) << row.tensor;
    EXPECT_EQ(role.layer, row.layer) << row.tensor;
  }
}

TEST(TensorNames, WhatIsNoProjection) {
  const std::pair<const char*, const char*> kRows[] = {
      {"model.embed_tokens.weight", "embedding"},
      {"token_embd.weight", "embedding"},
      {"model.layers.0.input_layernorm.weight", "norm"},
      {"model.layers.0.self_attn.q_norm.weight", "norm"},
      {"blk.0.ffn_norm.weight", "norm"},
      {"output_norm.weight", "norm"},
      {"model.layers.0.self_attn.q_proj.bias", "not named *.weight"},
      {"model.layers.0.linear_attn.A_log", "not named *.weight"},
      {"model.layers.0.linear_attn.conv1d.weight", "convolution"},
      {"model.layers.0.mlp.experts.7.gate_proj.weight", "routed expert"},
      {"model.layers.0.mlp.experts.gate_up_proj", "routed expert"},
      {"blk.0.ffn_gate_exps.weight", "routed expert"},
      {"model.layers.0.mlp.up_proj.weight_scale_inv", "scale grid of another tensor"},
  };
  for (const auto& [tensor, reason] : kRows) EXPECT_EQ(RoleOf(tensor).skip, reason) << tensor;
}

TEST(ImportCheckpoint, SingleSafetensorsFile) {
  const TempDir dir;
  const std::string path =
      dir.Write("model.safetensors",
                SafetensorsBuilder()
                    .Add("model.layers.10.mlp.up_proj.weight", "BF16", {2, 3}, Bf16(2, 3))
                    .Add("model.layers.2.mlp.up_proj.weight_scale_inv", "F32", {1, 1}, One())
                    .Add("model.layers.2.mlp.up_proj.weight", "F8_E4M3", {4, 5}, Fp8(4, 5))
                    .Add("lm_head.weight", "BF16", {7, 3}, Bf16(7, 3))
                    .Add("model.embed_tokens.weight", "BF16", {7, 3}, Bf16(7, 3))
                    .Add("model.layers.2.mlp.down_proj.weight", "F16", {2, 3}, Bf16(2, 3))
                    .Add("model.layers.2.self_attn.o_proj.weight", "F32", {1, 1}, One())
                    .Add("model.layers.2.mlp.up_proj.bias", "F32", {1}, One())
                    .Add("model.layers.2.one_d.weight", "BF16", {3}, Bf16(1, 3))
                    .Add("model.layers.2.three_d.weight", "BF16", {1, 1, 3}, Bf16(1, 3))
                    .Add("model.layers.2.whole.weight", "I32", {1, 1}, One())
                    .Build());
  for (const std::string& at : {path, dir.path()}) {
    const auto checkpoint = ImportCheckpoint(at);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_THAT(Names(checkpoint->shards),
                ElementsAre("layers.2.ffn_up", "layers.10.ffn_up", "lm_head"));
    const NamedWeight& fp8 = checkpoint->shards[0];
    EXPECT_EQ(fp8.source->spec().format, WeightFormat::kFp8Block128);
    EXPECT_EQ(fp8.source->spec().name, "model.layers.2.mlp.up_proj.weight");
    EXPECT_THAT(fp8.source->scales(), ElementsAre(1.5f));
    EXPECT_EQ(fp8.source->origin(), path);
    EXPECT_EQ(ReadAll(*fp8.source), ToBytes(Fp8(4, 5)));
    EXPECT_EQ(checkpoint->shards[1].source->spec().format, WeightFormat::kBf16);
    const auto reasons = Reasons(*checkpoint);
    EXPECT_EQ(reasons.size(), 8u);
    EXPECT_EQ(reasons.at("model.embed_tokens.weight"), "embedding");
    EXPECT_THAT(reasons.at("model.layers.2.mlp.down_proj.weight"), HasSubstr("F16 is not served"));
    EXPECT_THAT(reasons.at("model.layers.2.self_attn.o_proj.weight"),
                HasSubstr("F32 is not served"));
    EXPECT_THAT(reasons.at("model.layers.2.one_d.weight"), HasSubstr("1-D"));
    EXPECT_THAT(reasons.at("model.layers.2.three_d.weight"), HasSubstr("3-D"));
    EXPECT_THAT(reasons.at("model.layers.2.whole.weight"), HasSubstr("I32"));
  }
}

TEST(ImportCheckpoint, ShardedWithIndexAndScaleInAnotherFile) {
  const TempDir dir;
  dir.Write("a.safetensors",
            SafetensorsBuilder()
                .Add("model.layers.0.mlp.up_proj.weight", "F8_E4M3", {4, 5}, Fp8(4, 5))
                .Add("lm_head.weight", "BF16", {1, 1}, Bf16(1, 1))
                .Build());
  // A stale copy of the head: the index says which one counts.
  dir.Write("b.safetensors",
            SafetensorsBuilder()
                .Add("model.layers.0.mlp.up_proj.weight_scale_inv", "BF16", {1, 1}, Bf16(1, 1))
                .Add("lm_head.weight", "BF16", {7, 3}, Bf16(7, 3))
                .Build());
  dir.Write("unlisted.safetensors", "not even a safetensors file");
  const std::string index =
      dir.Write("model.safetensors.index.json", R"({"metadata":{},"weight_map":{
      "model.layers.0.mlp.up_proj.weight":"a.safetensors",
      "model.layers.0.mlp.up_proj.weight_scale_inv":"b.safetensors",
      "lm_head.weight":"b.safetensors"}})");
  for (const std::string& at : {dir.path(), index}) {
    const auto checkpoint = ImportCheckpoint(at);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_THAT(Names(checkpoint->shards), ElementsAre("layers.0.ffn_up", "lm_head"));
    EXPECT_EQ(checkpoint->shards[1].source->spec().n, 7);
    EXPECT_EQ(checkpoint->shards[0].source->scales().size(), 1u);
  }
}

TEST(ImportCheckpoint, IndexThatDoesNotMatchItsFiles) {
  const TempDir dir;
  dir.Write("a.safetensors",
            SafetensorsBuilder().Add("x.weight", "BF16", {1, 1}, Bf16(1, 1)).Build());
  const auto with_map = [&](const std::string& map) {
    dir.Write("model.safetensors.index.json", "{\"weight_map\":" + map + "}");
    return dir.path();
  };
  EXPECT_THAT(
      ImportError(with_map(R"({"y.weight":"a.safetensors"})"), absl::StatusCode::kInvalidArgument),
      AllOf(HasSubstr("y.weight"), HasSubstr("a.safetensors")));
  EXPECT_THAT(
      ImportError(with_map(R"({"x.weight":"gone.safetensors"})"), absl::StatusCode::kNotFound),
      HasSubstr("gone.safetensors"));
  EXPECT_THAT(ImportError(with_map(R"({"x.weight":"../a.safetensors"})"),
                          absl::StatusCode::kInvalidArgument),
              HasSubstr("inside"));
}

TEST(ImportCheckpoint, SeveralFilesWithoutIndex) {
  const TempDir dir;
  dir.Write(
      "b.safetensors",
      SafetensorsBuilder().Add("layers.1.mlp.up_proj.weight", "BF16", {1, 1}, Bf16(1, 1)).Build());
  dir.Write(
      "a.safetensors",
      SafetensorsBuilder().Add("layers.0.mlp.up_proj.weight", "BF16", {1, 1}, Bf16(1, 1)).Build());
  const auto checkpoint = ImportCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(Names(checkpoint->shards), ElementsAre("layers.0.ffn_up", "layers.1.ffn_up"));
  dir.Write(
      "c.safetensors",
      SafetensorsBuilder().Add("layers.1.mlp.up_proj.weight", "BF16", {1, 1}, Bf16(1, 1)).Build());
  EXPECT_THAT(ImportError(dir.path(), absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("duplicate tensor name"), HasSubstr("b.safetensors"),
                    HasSubstr("c.safetensors")));
}

TEST(ImportCheckpoint, DirectoriesThatHoldNothingOrTwoThings) {
  const TempDir dir;
  EXPECT_THAT(ImportError(dir.path(), absl::StatusCode::kInvalidArgument),
              HasSubstr("0 safetensors"));
  EXPECT_THAT(ImportError(dir.At("gone"), absl::StatusCode::kNotFound), HasSubstr("gone"));
  dir.Write("a.safetensors", Safetensors("{}", ""));
  dir.Write("a.gguf", GgufBuilder().Build());
  EXPECT_THAT(ImportError(dir.path(), absl::StatusCode::kInvalidArgument),
              HasSubstr("1 safetensors and 1 GGUF"));
}

TEST(ImportCheckpoint, BrokenFp8PairsAreErrors) {
  const TempDir dir;
  const auto import = [&](SafetensorsBuilder builder) {
    const std::string path = dir.Write("w.safetensors", builder.Build());
    return ImportError(path, absl::StatusCode::kInvalidArgument);
  };
  EXPECT_THAT(import(SafetensorsBuilder().Add("a.weight", "F8_E4M3", {4, 5}, Fp8(4, 5))),
              AllOf(HasSubstr("'a.weight'"), HasSubstr("expected a.weight_scale_inv"),
                    HasSubstr("[1, 1]"), HasSubstr("found none")));
  EXPECT_THAT(import(SafetensorsBuilder()
                         .Add("a.weight_scale_inv", "F32", {1}, One())
                         .Add("a.weight", "F8_E4M3", {4, 5}, Fp8(4, 5))),
              AllOf(HasSubstr("[1, 1]"), HasSubstr("F32 [1]")));
}

TEST(ImportCheckpoint, TheManifestsBlockSizeCounts) {
  // 128 x 128 weights have a 1 x 1 grid whether blocks are 128 or 256 wide.
  const TempDir dir;
  dir.Write("w.safetensors", SafetensorsBuilder()
                                 .Add("a.weight_scale_inv", "F32", {1, 1}, One())
                                 .Add("a.weight", "F8_E4M3", {128, 128}, Fp8(128, 128))
                                 .Build());
  const auto config = [&](const std::string& quantization) {
    dir.Write("config.json", R"({"hidden_size":128,"quantization_config":)" + quantization + "}");
    return ImportCheckpoint(dir.path()).status();
  };
  EXPECT_TRUE(config(R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]})").ok());
  EXPECT_TRUE(config("null").ok());
  EXPECT_TRUE(config("{}").ok());
  for (const std::string block : {"[256,256]", "[128]", "[1,128]", "128", "\"128\""}) {
    const absl::Status status = config("{\"weight_block_size\":" + block + "}");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << block;
    EXPECT_THAT(std::string(status.message()), HasSubstr("[128,128]"));
  }
  EXPECT_THAT(std::string(config(R"({"fmt":"e5m2"})").message()), HasSubstr("e5m2"));
  dir.Write("config.json", "{");
  EXPECT_THAT(ImportError(dir.path(), absl::StatusCode::kInvalidArgument),
              HasSubstr("config.json"));
}

TEST(ImportCheckpoint, NothingIsGuessedWhenTwoTensorsFitOneShard) {
  const TempDir dir;
  const std::string path = dir.Write(
      "w.safetensors", SafetensorsBuilder()
                           .Add("layers.0.mlp.up_proj.weight", "BF16", {1, 1}, Bf16(1, 1))
                           .Add("model.layers.0.mlp.up_proj.weight", "BF16", {1, 1}, Bf16(1, 1))
                           .Add("model.layers.0.mlp.gate_proj.weight", "BF16", {1, 1}, Bf16(1, 1))
                           .Build());
  const auto checkpoint = ImportCheckpoint(path);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_THAT(Names(checkpoint->shards), ElementsAre("layers.0.ffn_gate"));
  ASSERT_EQ(checkpoint->skipped.size(), 2u);
  for (const SkippedTensor& skipped : checkpoint->skipped) {
    EXPECT_THAT(skipped.reason, AllOf(HasSubstr("ambiguous"), HasSubstr("layers.0.ffn_up")));
  }
}

TEST(ImportCheckpoint, Gguf) {
  const auto checkpoint = ImportCheckpoint(FULCRUM_TEST_DATA "/q2_0/mainline.gguf");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::map<std::string, Family> shards;
  for (const NamedWeight& shard : checkpoint->shards) {
    shards[shard.shard] = shard.family;
    EXPECT_EQ(shard.source->spec().format, WeightFormat::kQ2_0);
    EXPECT_TRUE(CheckFinite(*shard.source).ok());
  }
  const std::map<std::string, Family> expected = {
      {"layers.0.attn_q", Family::kAttnQkv},
      {"layers.0.ffn_up", Family::kFfnGateUp},
      {"layers.0.shared_expert_gate", Family::kSharedExpert},
      {"layers.1.ffn_down", Family::kFfnDown}};
  EXPECT_EQ(shards, expected);
}

TEST(ImportCheckpoint, GgufPartsCountOnlyTogether) {
  const auto part = [](uint16_t no, uint16_t count, const std::string& tensor) {
    constexpr uint32_t kU16 = 2;
    return GgufBuilder()
        .Pair("split.no", kU16, LittleEndian(no))
        .Pair("split.count", kU16, LittleEndian(count))
        .Tensor(tensor, {2, 1}, 30, 0)
        .Data("\1\2\3\4")
        .Build();
  };
  const TempDir dir;
  const std::string first = dir.Write("m-1.gguf", part(0, 2, "blk.0.ffn_up.weight"));
  EXPECT_THAT(ImportError(first, absl::StatusCode::kInvalidArgument), HasSubstr("one of 2 parts"));
  dir.Write("m-2.gguf", part(1, 2, "blk.1.ffn_up.weight"));
  const auto checkpoint = ImportCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(Names(checkpoint->shards), ElementsAre("layers.0.ffn_up", "layers.1.ffn_up"));
  dir.Write("other.gguf", part(0, 1, "blk.2.ffn_up.weight"));
  EXPECT_THAT(ImportError(dir.path(), absl::StatusCode::kInvalidArgument),
              HasSubstr("3 GGUF files"));
}

TEST(OpenTensor, ByNameWhateverItsRole) {
  const TempDir dir;
  const std::string path =
      dir.Write("w.safetensors", SafetensorsBuilder()
                                     .Add("model.embed_tokens.weight", "BF16", {7, 3}, Bf16(7, 3))
                                     .Add("half.weight", "F16", {7, 3}, Bf16(7, 3))
                                     .Build());
  const auto embedding = OpenTensor(path, "model.embed_tokens.weight");
  ASSERT_TRUE(embedding.ok()) << embedding.status();
  EXPECT_EQ((*embedding)->spec().n, 7);
  EXPECT_EQ(OpenTensor(path, "half.weight").status().code(), absl::StatusCode::kInvalidArgument);
  const auto missing = OpenTensor(path, "embed_tokens.weight");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("model.embed_tokens.weight"));
}

TEST(Inspect, ListsEveryTensorWithItsFate) {
  const TempDir dir;
  const std::string path = dir.Write(
      "w.safetensors", SafetensorsBuilder()
                           .Add("a.weight", "F8_E4M3", {4, 5}, Fp8(4, 5))
                           .Add("model.layers.2.mlp.up_proj.weight", "BF16", {2, 3}, Bf16(2, 3))
                           .Add("norm.weight", "F32", {1}, One())
                           .Build());
  const auto inspection = Inspect(path);
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  EXPECT_EQ(inspection->container, "safetensors");
  EXPECT_THAT(inspection->files, ElementsAre(path));
  ASSERT_EQ(inspection->tensors.size(), 3u);
  const InspectedTensor& broken = inspection->tensors[0];
  EXPECT_EQ(broken.fate, Fate::kRefused);
  EXPECT_EQ(broken.format, "fp8");
  EXPECT_THAT(broken.why, HasSubstr("scale grid"));
  const InspectedTensor& served = inspection->tensors[1];
  EXPECT_EQ(served.name, "model.layers.2.mlp.up_proj.weight");
  EXPECT_EQ(served.shard, "layers.2.ffn_up");
  EXPECT_EQ(served.family, Family::kFfnGateUp);
  EXPECT_EQ(served.layer, 2);
  EXPECT_EQ(served.dtype, "BF16");
  EXPECT_EQ(served.format, "bf16");
  EXPECT_EQ(served.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(served.bytes, 12u);
  EXPECT_EQ(ReadFile(path).substr(served.offset, served.bytes), Bf16(2, 3));
  EXPECT_EQ(served.fate, Fate::kServed);
  EXPECT_THAT(served.why, IsEmpty());
  EXPECT_EQ(inspection->tensors[2].why, "norm");
  EXPECT_EQ(inspection->tensors[2].fate, Fate::kSkipped);
  EXPECT_THAT(std::string(inspection->refusal.message()), HasSubstr("'a.weight'"));
}

}  // namespace
}  // namespace fulcrum::test

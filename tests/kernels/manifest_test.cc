// What manifests say about fp8 weights: every place and wording that contradicts E4M3FN with a
// scale for each 128x128 block refuses the tensor, however its file is named.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>

#include "kernels/weights/checkpoint.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string RefusalOf(const std::string& json, ManifestKind kind = ManifestKind::kConfig) {
  const auto manifest = ParseManifest(json, "config.json", kind);
  EXPECT_TRUE(manifest.ok()) << json << manifest.status();
  return manifest.ok() ? manifest->fp8_refusal : "";
}
// One scheme of compressed-tensors.
std::string Group(const std::string& weights) {
  return R"({"quantization_config":{"config_groups":{"group_0":{"targets":["Linear"],"weights":)" +
         weights + "}}}}";
}

TEST(Manifest, WhatAgreesWithOurBlocks) {
  for (const std::string& json : {
           std::string("{}"),
           std::string(R"({"quantization_config":null})"),
           std::string(R"({"quantization_config":{}})"),
           std::string(R"({"quantization_config":{"quant_method":"fp8","fmt":"e4m3",
                           "weight_block_size":[128,128],"activation_scheme":"dynamic"}})"),
           std::string(R"({"quantization_config":{"weight_block_size":null,"fmt":null}})"),
           std::string(R"({"quantization_config":{"fmt":"E4M3FN"}})"),
           Group(R"({"type":"float","num_bits":8,"strategy":"block","block_structure":[128,128],
                     "symmetric":true,"dynamic":false,"group_size":null})"),
           Group(R"({"type":"float","num_bits":8,"strategy":"block","block_structure":"128x128"})"),
           Group(R"({"block_structure":[128,128]})"),
           Group("null"),
           // Activations and caches have blocks of their own.
           std::string(R"({"quantization_config":{"config_groups":{"g":{"weights":{"type":"float",
               "num_bits":8,"strategy":"block","block_structure":[128,128]},
               "input_activations":{"type":"float","num_bits":8,"strategy":"group","group_size":128,
               "symmetric":false,"block_structure":[1,128]}}},
               "kv_cache_scheme":{"type":"float","num_bits":8,"strategy":"tensor"}}})"),
           // Other weights are of four bits.
           std::string(R"({"quantization_config":{"config_groups":{
               "a":{"weights":{"type":"int","num_bits":4,"strategy":"group"}},
               "b":{"weights":{"type":"float","num_bits":8,"strategy":"block",
                               "block_structure":[128,128]}}}}})"),
           std::string(R"({"quantization_config":{"quant_method":"modelopt",
                           "quant_algo":"FP8_BLOCK_SCALES"}})"),
           // Not a quantization section.
           std::string(R"({"fmt":"e5m2","strategy":"tensor","type":"int"})"),
           std::string(R"({"time_step_limit":[0.0,Infinity],"x":[NaN,-Infinity , 1]})"),
       }) {
    EXPECT_EQ(RefusalOf(json), "") << json;
  }
}

TEST(Manifest, WhatContradictsThemNamesTheField) {
  const std::pair<std::string, std::string> kCases[] = {
      {R"({"quantization_config":{"weight_block_size":[96,96]}})",
       "quantization_config.weight_block_size"},
      {R"({"quantization_config":{"weight_block_size":[128]}})", "weight_block_size"},
      {R"({"quantization_config":{"weight_block_size":[1,128]}})", "weight_block_size"},
      {R"({"quantization_config":{"weight_block_size":[128,128,1]}})", "weight_block_size"},
      {R"({"quantization_config":{"weight_block_size":128}})", "weight_block_size"},
      {R"({"quantization_config":{"weight_block_size":"96x96"}})", "weight_block_size"},
      {R"({"quantization_config":{"fmt":"e5m2"}})", "quantization_config.fmt"},
      {R"({"quantization_config":{"fmt":"e4m3fnuz"}})", "fmt"},
      {R"({"quantization_config":{"fmt":8}})", "fmt"},
      {R"({"compression_config":{"weight_block_size":[96,96]}})",
       "compression_config.weight_block_size"},
      {R"({"text_config":{"quantization_config":{"weight_block_size":[96,96]}}})",
       "text_config.quantization_config.weight_block_size"},
      {R"({"thinker_config":{"text_config":{"quantization_config":{"fmt":"e5m2"}}}})",
       "thinker_config.text_config.quantization_config.fmt"},
      {R"({"quantization_config":{"config":[{"weight_block_size":[64,64]}]}})",
       "quantization_config.config.0.weight_block_size"},
      {R"({"weight_block_size":[96,96]})", "weight_block_size"},
      {Group(R"({"type":"float","num_bits":8,"strategy":"block","block_structure":[96,96]})"),
       "quantization_config.config_groups.group_0.weights.block_structure"},
      {Group(R"({"block_structure":"64x64"})"), "weights.block_structure"},
      {Group(R"({"type":"float","num_bits":8,"strategy":"tensor"})"), "weights.strategy"},
      {Group(R"({"type":"float","num_bits":8,"strategy":"channel"})"), "weights.strategy"},
      {Group(R"({"type":"float","num_bits":8,"strategy":"group","group_size":128})"), "strategy"},
      {Group(R"({"strategy":3})"), "weights.strategy"},
      {Group(R"({"type":"float","num_bits":8,"strategy":"block","symmetric":false})"),
       "weights.symmetric"},
      {Group(R"({"type":"int","num_bits":8})"), "weights.type"},
      {Group(R"({"type":"float","num_bits":4})"), "weights.num_bits"},
      {Group(R"({"num_bits":4,"block_structure":[128,128]})"), "weights.num_bits"},
      {R"({"quantization_config":{"config_groups":{
           "a":{"weights":{"type":"float","num_bits":8,"strategy":"block","block_structure":[128,128]}},
           "b":{"weights":{"type":"float","num_bits":8,"strategy":"channel"}}}}})",
       "b.weights.strategy"},
      {R"({"quantization_config":{"quant_method":"modelopt","quant_algo":"FP8"}})", "quant_algo"},
      {R"({"quantization_config":{"quant_algo":"NVFP4"}})", "quant_algo"},
      {R"({"quantization_config":{"quant_algo":["FP8_BLOCK_SCALES"]}})", "quant_algo"},
  };
  for (const auto& [json, field] : kCases) {
    EXPECT_THAT(RefusalOf(json),
                AllOf(HasSubstr("config.json: "), HasSubstr(field + " is"), HasSubstr("only")))
        << json;
  }
}

TEST(Manifest, ModelOptsOwnFileSpeaksOfQuantizationThroughout) {
  const auto refusal = [](const std::string& quantization) {
    return RefusalOf(R"({"producer":{"name":"modelopt"},"quantization":)" + quantization + "}",
                     ManifestKind::kQuantization);
  };
  EXPECT_EQ(refusal(R"({"quant_algo":"FP8_PB_WO","kv_cache_quant_algo":"FP8"})"), "");
  EXPECT_EQ(refusal(R"({"quant_algo":null,"kv_cache_quant_algo":"FP8"})"), "");
  EXPECT_EQ(refusal(R"({"quant_algo":"MIXED_PRECISION","quantized_layers":{
      "model.layers.0.mlp":{"quant_algo":"FP8_BLOCK_SCALES"},
      "model.layers.1.mlp":{"quant_algo":"W4A16_AWQ"}}})"),
            "");
  EXPECT_THAT(refusal(R"({"quant_algo":"FP8"})"), HasSubstr("quantization.quant_algo is"));
  EXPECT_THAT(refusal(R"({"quant_algo":"FP8_PER_CHANNEL_PER_TOKEN"})"), HasSubstr("quant_algo"));
  EXPECT_THAT(refusal(R"({"quant_algo":"MIXED_PRECISION","quantized_layers":{
      "model.layers.0.mlp":{"quant_algo":"FP8"}}})"),
              HasSubstr("model.layers.0.mlp.quant_algo"));
  EXPECT_THAT(refusal(R"({"weight_block_size":[64,64]})"), HasSubstr("weight_block_size"));
}

TEST(Manifest, IsReadAsStrictlyAsAHeader) {
  const std::string good = R"({"num_hidden_layers":1})";
  const std::string nul(1, '\0');
  for (const std::string& text :
       {good + nul, good + nul + "}", good + "x", nul + good, "\xef\xbb\xbf" + good,
        std::string(R"({"a":1,"a":1})"),
        std::string(R"({"quantization_config":{"fmt":"e4m3","fmt":"e5m2"}})"),
        std::string("{\"\xff\":1}"), std::string("[]"), std::string("1"), std::string("NaN"),
        std::string(""), std::string("{"), std::string(R"({"a":1NaN})"),
        std::string(R"({"a":Infinity2})"), std::string(R"({"a":infinity})"),
        std::string(R"({NaN:1})"),
        "{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}"}) {
    const auto manifest = ParseManifest(text, "config.json", ManifestKind::kConfig);
    EXPECT_EQ(manifest.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(manifest.status().message()), HasSubstr("config.json"));
  }
  EXPECT_TRUE(ParseManifest(" " + good + "\n", "", ManifestKind::kConfig).ok());
  EXPECT_TRUE(
      ParseManifest(R"({"a":"\"NaN","b":"Infinity \\", "c":NaN})", "", ManifestKind::kConfig).ok());
}

TEST(Manifest, MetadataOfAHeaderIsOneToo) {
  const auto read = [](const std::map<std::string, std::string>& metadata) {
    return ManifestOfMetadata(metadata, "w.safetensors");
  };
  EXPECT_EQ(read({{"format", "pt"}, {"notes", "{not JSON"}, {"fmt", "e4m3"}}).fp8_refusal, "");
  for (const std::map<std::string, std::string>& metadata :
       {std::map<std::string, std::string>{{"weight_block_size", "[96, 96]"}},
        {{"quantization_config", R"({"weight_block_size":[96,96]})"}},
        {{"quantization_config", "{}"}, {"weight_block_size", "[96, 96]"}},
        {{"config", R"({"text_config":{"quantization_config":{"weight_block_size":[96,96]}}})"}},
        {{"hf_quant_config", R"({"weight_block_size":[96,96]})"}},
        {{"block_structure", "96x96"}}}) {
    EXPECT_THAT(read(metadata).fp8_refusal,
                AllOf(HasSubstr("w.safetensors: __metadata__: "), HasSubstr("96")));
  }
  EXPECT_THAT(read({{"fmt", "e5m2"}}).fp8_refusal, HasSubstr("fmt is"));
  EXPECT_EQ(read({{"num_hidden_layers", "7"}}).layers->layers, 7u);
  EXPECT_EQ(read({{"config", R"({"num_hidden_layers":7})"}}).layers->layers, 7u);
  EXPECT_THAT(read({{"config", "{\"a\":1,\"a\":1}"}}).fp8_refusal,
              HasSubstr("__metadata__.config: duplicate key"));
  EXPECT_THAT(read({{"config", "{'of': 'Python'}"}}).fp8_refusal, HasSubstr("not valid JSON"));
}

// An fp8 tensor with a grid that fits blocks of 128 and of 96, a BF16 tensor, and a manifest in
// words that refuse.
class ManifestBeside : public ::testing::Test {
 protected:
  static constexpr char kFp8[] = "model.layers.0.mlp.up_proj.weight";
  static constexpr char kBf16[] = "model.layers.0.mlp.down_proj.weight";
  static std::string Weights(const std::string& metadata = "") {
    std::string file =
        SafetensorsBuilder()
            .Add(std::string(kFp8) + "_scale_inv", "F32", {2, 2}, ArrayBytes<float>({1, 2, 3, 4}))
            .Add(kFp8, "F8_E4M3", {190, 190}, std::string(190 * 190, '8'))
            .Add(kBf16, "BF16", {1, 2}, "1234")
            .Build();
    if (metadata.empty()) return file;
    uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof(header));
    const std::string text = "{\"__metadata__\":" + metadata + "," + file.substr(9, header - 1);
    return Safetensors(text, file.substr(8 + header));
  }
  static std::string Config(const std::string& block = "[96,96]") {
    return R"({"quantization_config":{"weight_block_size":)" + block + "}}";
  }
  static void ExpectRefused(const std::string& path, const std::string& where) {
    const auto tensor = OpenTensor(path, kFp8);
    EXPECT_EQ(tensor.status().code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(tensor.status().message()),
                AllOf(HasSubstr(kFp8), HasSubstr(where), HasSubstr("[128,128]")))
        << path;
    EXPECT_EQ(ImportCheckpoint(path).status().code(), absl::StatusCode::kInvalidArgument) << path;
    // The manifest says nothing about the others.
    EXPECT_TRUE(OpenTensor(path, kBf16).ok()) << path;
    EXPECT_NE(ReadCatalog(path)->Find(kFp8)->refused, "");
  }
  static void ExpectServed(const std::string& path) {
    EXPECT_TRUE(OpenTensor(path, kFp8).ok()) << OpenTensor(path, kFp8).status();
    EXPECT_TRUE(ImportCheckpoint(path).ok()) << ImportCheckpoint(path).status();
  }
  TempDir dir_;
};

TEST_F(ManifestBeside, HoweverTheCheckpointIsNamed) {
  const std::string file = dir_.Write("m/model.safetensors", Weights());
  const std::string index =
      dir_.Write("m/other.index.json",
                 R"({"weight_map":{"model.layers.0.mlp.up_proj.weight":"model.safetensors",
      "model.layers.0.mlp.up_proj.weight_scale_inv":"model.safetensors",
      "model.layers.0.mlp.down_proj.weight":"model.safetensors"}})");
  std::filesystem::create_symlink(dir_.At("m"), dir_.At("folder_link"));
  std::filesystem::create_directory(dir_.At("elsewhere"));
  std::filesystem::create_symlink("../m/model.safetensors", dir_.At("elsewhere/one.safetensors"));
  std::filesystem::create_symlink("one.safetensors", dir_.At("elsewhere/two"));
  const std::string kNames[] = {file,
                                index,
                                dir_.At("m"),
                                dir_.At("m/"),
                                dir_.At("m/../m/model.safetensors"),
                                dir_.At("folder_link"),
                                dir_.At("folder_link/model.safetensors"),
                                dir_.At("folder_link/other.index.json"),
                                dir_.At("elsewhere/one.safetensors"),
                                dir_.At("elsewhere/two"),
                                dir_.At("elsewhere")};
  const auto each = [&](const std::function<void(const std::string&)>& check) {
    for (const std::string& name : kNames) check(name);
  };
  each(ExpectServed);
  for (const std::string manifest : {"m/config.json", "m/hf_quant_config.json"}) {
    dir_.Write(manifest, Config());
    each([&](const std::string& name) { ExpectRefused(name, manifest.substr(2)); });
    dir_.Write(manifest, Config("[128,128]"));
    each(ExpectServed);
    std::filesystem::remove(dir_.At(manifest));
  }
  // Beside the link, which is where the file was named.
  dir_.Write("elsewhere/config.json", Config());
  ExpectRefused(dir_.At("elsewhere/two"), "elsewhere/config.json");
  ExpectServed(file);
}

TEST_F(ManifestBeside, OfAnIndexAndOfItsFilesFolders) {
  dir_.Write("sub/1.safetensors", Weights());
  const std::string index = dir_.Write(
      "m.index.json", R"({"weight_map":{"model.layers.0.mlp.up_proj.weight":"sub/1.safetensors",
      "model.layers.0.mlp.up_proj.weight_scale_inv":"sub/1.safetensors",
      "model.layers.0.mlp.down_proj.weight":"sub/1.safetensors"}})");
  ExpectServed(index);
  for (const std::string manifest : {"config.json", "sub/config.json"}) {
    dir_.Write(manifest, Config());
    ExpectRefused(index, manifest);
    std::filesystem::remove(dir_.At(manifest));
  }
}

TEST_F(ManifestBeside, InTheIndexItself) {
  dir_.Write("a.safetensors", Weights());
  const auto index = [&](const std::string& members) {
    return dir_.Write("m.index.json",
                      "{" + members + R"("weight_map":{"model.layers.0.mlp.up_proj.weight":
      "a.safetensors","model.layers.0.mlp.up_proj.weight_scale_inv":"a.safetensors",
      "model.layers.0.mlp.down_proj.weight":"a.safetensors"}})");
  };
  ExpectServed(index(R"("metadata":{"total_parameters":5,"made_by":["x"]},)"));
  ExpectRefused(index(R"("metadata":{"weight_block_size":[96,96]},)"), "m.index.json: metadata.");
  // By its usual name it counts for a file of it, too.
  std::filesystem::rename(dir_.At("m.index.json"), dir_.At("model.safetensors.index.json"));
  ExpectRefused(dir_.path(), "index.json: metadata.");
  ExpectRefused(dir_.At("a.safetensors"), "index.json: metadata.");
  std::filesystem::remove(dir_.At("model.safetensors.index.json"));
  ExpectRefused(index(R"("quantization_config":{"weight_block_size":[96,96]},)"), "m.index.json");
}

TEST_F(ManifestBeside, InTheFilesOwnHeader) {
  ExpectServed(dir_.Write("a.safetensors", Weights(R"({"format":"pt"})")));
  ExpectRefused(dir_.Write("a.safetensors", Weights(R"({"weight_block_size":"[96,96]"})")),
                "__metadata__");
  ExpectRefused(
      dir_.Write(
          "a.safetensors",
          Weights(R"({"config":"{\"quantization_config\":{\"weight_block_size\":[96,96]}}"})")),
      "__metadata__");
}

TEST_F(ManifestBeside, OneThatCannotBeReadIsAnError) {
  const std::string file = dir_.Write("a.safetensors", Weights());
  const auto error = [&] { return std::string(OpenTensor(file, kFp8).status().message()); };
  dir_.Write("config.json", "{");
  EXPECT_THAT(error(), HasSubstr("config.json: not valid JSON"));
  std::filesystem::remove(dir_.At("config.json"));
  std::filesystem::create_symlink("../gone.json", dir_.At("config.json"));
  EXPECT_THAT(error(),
              AllOf(HasSubstr("config.json"), HasSubstr("gone.json, which does not exist")));
  std::filesystem::remove(dir_.At("config.json"));
  std::filesystem::create_directory(dir_.At("config.json"));
  EXPECT_THAT(error(), HasSubstr("config.json is a folder"));
}

TEST_F(ManifestBeside, AGgufFileDescribesItself) {
  dir_.Write("config.json", R"({"num_hidden_layers":40,"quantization_config":{"fmt":"e5m2"}})");
  const std::string path = dir_.Write(
      "m.gguf",
      GgufBuilder().Tensor("blk.0.ffn_up.weight", {2, 1}, 30, 0).Data("\1\2\3\4").Build());
  EXPECT_TRUE(ImportCheckpoint(path).ok());
}

}  // namespace
}  // namespace fulcrum::test

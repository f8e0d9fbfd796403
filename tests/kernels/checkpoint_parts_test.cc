// A part of a checkpoint taken for the whole: by names, by GGUF's split keys, and by the layers
// that a manifest or header promises. The model is refused with what is missing or doubled; tensors
// that are there can still be asked for by name.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/checkpoint_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kernels/weights/checkpoint.h"
#include "kernels/weights/layer_count.h"
#include "kernels/weights/whole_numbers.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PartOf, NamesThatSayPartAndNamesThatDoNot) {
  const auto text = [](std::string_view name) {
    const auto part = PartOf(name);
    return part
               ? part->stem + "|" + std::to_string(part->number) + "|" + std::to_string(part->total)
               : "none";
  };
  EXPECT_EQ(text("model-00001-of-00003.safetensors"), "model-|1|3");
  EXPECT_EQ(text("model-00002-of-000163.safetensors"), "model-|2|163");
  EXPECT_EQ(text("m_1_of_2.gguf"), "m_|1|2");
  EXPECT_EQ(text("00000-of-00001.safetensors"), "|0|1");
  EXPECT_EQ(text("model.part1of3.gguf"), "model.part|1|3");
  for (const std::string_view name :
       {"model.safetensors", "model-00001.safetensors", "proof3.gguf", "a-of-3.gguf", "1-of-b.gguf",
        "model-00001-of-00003-copy.safetensors", "1-of-99999999999999999999.gguf", ""}) {
    EXPECT_EQ(text(name), "none") << name;
  }
}

TEST(MissingNumbers, AreNamedAsRanges) {
  EXPECT_EQ(MissingNumbers({1, 2, 3}, 1, 4), "");
  EXPECT_EQ(MissingNumbers({1, 3}, 1, 4), "2");
  EXPECT_EQ(MissingNumbers({5}, 0, 8), "0 to 4 and 6 to 7");
  EXPECT_EQ(MissingNumbers({0, 2, 4, 9}, 0, 6), "1, 3 and 5");
  EXPECT_EQ(MissingNumbers({}, 0, ~uint64_t{0}), "0 to 18446744073709551614");
  std::set<uint64_t> odd;
  for (uint64_t i = 1; i < 100; i += 2) odd.insert(i);
  EXPECT_THAT(MissingNumbers(odd, 0, 100), HasSubstr(" and more"));
}

// Folders of parts: each file holds one tensor, of the layer with its place in the list.
class Parts : public ::testing::Test {
 protected:
  static std::string TensorName(size_t layer) {
    return "model.layers." + std::to_string(layer) + ".mlp.up_proj.weight";
  }
  void Write(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      dir_.Write(name,
                 SafetensorsBuilder().Add(TensorName(written_++), "BF16", {1, 2}, "1234").Build());
    }
  }
  absl::Status Whole() const { return WholeOf(dir_.path()); }
  // All that speak of the whole agree.
  static absl::Status WholeOf(const std::string& path) {
    const auto catalog = ReadCatalog(path);
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    if (!catalog.ok()) return absl::OkStatus();
    EXPECT_EQ(ImportCheckpoint(path).status(), catalog->whole);
    EXPECT_TRUE(OpenTensor(path, catalog->tensors.front().name).ok());
    return catalog->whole;
  }
  std::string Refusal() const {
    const absl::Status whole = Whole();
    EXPECT_EQ(whole.code(), absl::StatusCode::kInvalidArgument);
    return std::string(whole.message());
  }
  size_t written_ = 0;
  TempDir dir_;
};

struct SetCase {
  const char* what;
  std::vector<std::string> names;
  std::vector<std::string> says;  // none: whole
};
class NamedParts : public Parts, public ::testing::WithParamInterface<SetCase> {};

TEST_P(NamedParts, WithoutAnIndex) {
  Write(GetParam().names);
  if (GetParam().says.empty()) {
    EXPECT_TRUE(Whole().ok()) << Whole();
    return;
  }
  for (const std::string& text : GetParam().says) EXPECT_THAT(Refusal(), HasSubstr(text));
}

TEST_P(NamedParts, ByAnIndexOfTheFilesThatAreThere) {
  Write(GetParam().names);
  std::string map;
  for (size_t i = 0; i < GetParam().names.size(); ++i) {
    map += (map.empty() ? "\"" : ",\"") + TensorName(i) + "\":\"" + GetParam().names[i] + "\"";
  }
  dir_.Write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  if (GetParam().says.empty()) {
    EXPECT_TRUE(Whole().ok()) << Whole();
    return;
  }
  for (const std::string& text : GetParam().says) EXPECT_THAT(Refusal(), HasSubstr(text));
}

const SetCase kSets[] = {
    {"all", {"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"}, {}},
    {"one_of_one", {"m-00001-of-00001.safetensors"}, {}},
    {"numbered_from_zero", {"m-0-of-2.safetensors", "m-1-of-2.safetensors"}, {}},
    {"others_beside_them",
     {"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors", "adapter.safetensors"},
     {}},
    {"middle", {"m-00001-of-00003.safetensors", "m-00003-of-00003.safetensors"}, {"part 2 is"}},
    {"first", {"m-00002-of-00003.safetensors", "m-00003-of-00003.safetensors"}, {"part 1 is"}},
    {"last", {"m-00001-of-00003.safetensors", "m-00002-of-00003.safetensors"}, {"part 3 is"}},
    {"many", {"m-00003-of-00009.safetensors"}, {"parts 1 to 2 and 4 to 9 are missing"}},
    {"last_from_zero", {"m-0-of-3.safetensors", "m-1-of-3.safetensors"}, {"part 2 is"}},
    {"doubled",
     {"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors", "m-1-of-2.safetensors"},
     {"m-1-of-2", "m-00001-of-00002", "both part 1"}},
    {"two_totals",
     {"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors",
      "m-00003-of-00003.safetensors"},
     {"two models", "one of 2", "one of 3"}},
    {"beyond",
     {"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors",
      "m-00003-of-00002.safetensors"},
     {"part 3 of 2"}},
    {"of_none", {"m-00001-of-00000.safetensors"}, {"part 1 of 0"}},
    {"two_sets_one_cut",
     {"a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors",
      "b-00001-of-00002.safetensors"},
     {"b-00001-of-00002", "part 2 is"}},
    {"absurd", {"m-1-of-18446744073709551615.safetensors"}, {"parts 2 to 1844674407370955161"}},
};
INSTANTIATE_TEST_SUITE_P(Sets, NamedParts, ::testing::ValuesIn(kSets),
                         [](const auto& row) { return std::string(row.param.what); });

TEST_F(Parts, OnePartNamedAsAFileIsNotTheModel) {
  Write({"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"});
  ASSERT_TRUE(Whole().ok());
  for (const std::string name : {"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"}) {
    EXPECT_THAT(std::string(WholeOf(dir_.At(name)).message()),
                AllOf(HasSubstr("is missing"), HasSubstr("Name the folder or index")));
  }
  // A link of another name does not make it whole, alone or in a folder of links.
  const auto link = [&](const std::string& part, const std::string& name) {
    std::filesystem::create_symlink("../" + part, dir_.At("links/" + name));
    return dir_.At("links/" + name);
  };
  std::filesystem::create_directory(dir_.At("links"));
  const std::string one = link("m-00001-of-00002.safetensors", "model.safetensors");
  for (const std::string& path : {one, dir_.At("links")}) {
    EXPECT_THAT(std::string(WholeOf(path).message()), HasSubstr("part 2 is missing")) << path;
  }
  link("m-00002-of-00002.safetensors", "rest.safetensors");
  EXPECT_TRUE(WholeOf(dir_.At("links")).ok());
}

TEST_F(Parts, FilesThatDoNotBelongTogetherAreToldBeforeTheNamesTheyShare) {
  Write({"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"});
  written_ = 0;
  Write({"m-1-of-2.safetensors"});
  EXPECT_THAT(std::string(ImportCheckpoint(dir_.path()).status().message()),
              AllOf(HasSubstr("both part 1"), HasSubstr("m-1-of-2")));
}

constexpr uint32_t kU16 = 2, kU32 = 4, kI32 = 5, kString = 8, kI64 = 11;

// One part of a GGUF model; what is not given is left out of its header.
struct GgufKeys {
  std::optional<uint16_t> no, count;
  std::optional<int32_t> tensors;
};
std::string GgufFile(const GgufKeys& keys, size_t layer) {
  GgufBuilder builder;
  if (keys.no) builder.Pair("split.no", kU16, LittleEndian(*keys.no));
  if (keys.count) builder.Pair("split.count", kU16, LittleEndian(*keys.count));
  if (keys.tensors) builder.Pair("split.tensors.count", kI32, LittleEndian(*keys.tensors));
  return builder.Tensor("blk." + std::to_string(layer) + ".ffn_up.weight", {2, 1}, 30, 0)
      .Data("\1\2\3\4")
      .Build();
}

struct SplitCase {
  const char* what;
  std::vector<std::pair<std::string, GgufKeys>> files;
  std::vector<std::string> says;
};
class GgufSplits : public Parts, public ::testing::WithParamInterface<SplitCase> {};

TEST_P(GgufSplits, OfAFolder) {
  size_t layer = 0;
  for (const auto& [name, keys] : GetParam().files) dir_.Write(name, GgufFile(keys, layer++));
  if (GetParam().says.empty()) {
    EXPECT_TRUE(Whole().ok()) << Whole();
    return;
  }
  for (const std::string& text : GetParam().says) EXPECT_THAT(Refusal(), HasSubstr(text));
}

const SplitCase kSplits[] = {
    {"all", {{"a.gguf", {0, 2, 2}}, {"b.gguf", {1, 2, 2}}}, {}},
    {"all_in_another_order", {{"a.gguf", {1, 2, 2}}, {"b.gguf", {0, 2, 2}}}, {}},
    {"keys_before_names",
     {{"m-00002-of-00002.gguf", {0, 2, {}}}, {"m-00001-of-00002.gguf", {1, 2, {}}}},
     {}},
    {"whole_without_keys", {{"a.gguf", {}}}, {}},
    {"merged_parts_under_a_parts_name", {{"m-00001-of-00002.gguf", {0, 0, 1}}}, {}},
    {"both_say_0",
     {{"m-00001-of-00002.gguf", {0, 2, 9}}, {"m-00002-of-00002.gguf", {0, 2, 9}}},
     {"m-00001", "m-00002", "both say they are part 0 of 2"}},
    {"one_is_missing", {{"a.gguf", {0, 3, 3}}, {"b.gguf", {2, 3, 3}}}, {"part 1 is missing"}},
    {"first_is_missing", {{"b.gguf", {1, 2, 2}}}, {"one of 2 parts", "part 0 is missing"}},
    {"other_totals", {{"a.gguf", {0, 2, {}}}, {"b.gguf", {1, 3, {}}}}, {"one of 2", "one of 3"}},
    {"beyond", {{"a.gguf", {0, 2, {}}}, {"b.gguf", {2, 2, {}}}}, {"part 2 of 2", "from 0"}},
    {"a_whole_one_among_them",
     {{"a.gguf", {0, 2, {}}}, {"b.gguf", {1, 2, {}}}, {"c.gguf", {}}},
     {"one of 2 parts", "3 GGUF files"}},
    {"two_whole_models", {{"a.gguf", {}}, {"b.gguf", {0, 1, 1}}}, {"a.gguf", "b.gguf", "whole"}},
    {"fewer_tensors_than_promised",
     {{"a.gguf", {0, 2, 9}}, {"b.gguf", {1, 2, 9}}},
     {"9 tensors", "2 are there"}},
    {"more_tensors_than_promised",
     {{"a.gguf", {0, 2, 1}}, {"b.gguf", {1, 2, 1}}},
     {"1 tensors", "2 are there"}},
    {"of_one_file_too", {{"a.gguf", {0, 1, 3}}}, {"3 tensors", "1 are there"}},
    {"by_name_alone", {{"m-00001-of-00003.gguf", {}}}, {"parts 2 to 3 are missing"}},
};
INSTANTIATE_TEST_SUITE_P(Splits, GgufSplits, ::testing::ValuesIn(kSplits),
                         [](const auto& row) { return std::string(row.param.what); });

TEST_F(Parts, OnePartOfASplitIsNotTheModel) {
  dir_.Write("a.gguf", GgufFile({0, 2, 2}, 0));
  dir_.Write("b.gguf", GgufFile({1, 2, 2}, 1));
  ASSERT_TRUE(Whole().ok());
  EXPECT_THAT(std::string(WholeOf(dir_.At("a.gguf")).message()), HasSubstr("part 1 is missing"));
  EXPECT_THAT(std::string(WholeOf(dir_.At("b.gguf")).message()), HasSubstr("part 0 is missing"));
}

TEST_F(Parts, SplitKeysOfAnotherKindAreNoKeys) {
  for (const std::string key : {"split.no", "split.count", "split.tensors.count"}) {
    for (const auto& [type, value] : {std::pair{kString, GgufBuilder::String("1")},
                                      {kI32, LittleEndian(int32_t{-1})},
                                      {kI64, LittleEndian(int64_t{-1})}}) {
      const auto catalog = ReadCatalog(dir_.Write(
          "a.gguf", GgufBuilder().Pair(key, type, value).Tensor("t", {0}, 0, 0).Build()));
      EXPECT_THAT(std::string(catalog.status().message()),
                  AllOf(HasSubstr(key), HasSubstr("not an unsigned integer")));
    }
  }
}

// Tensors of layers, under a prefix.
std::vector<std::string> Layers(const std::string& prefix, const std::vector<int>& layers) {
  std::vector<std::string> tensors;
  for (const int layer : layers) {
    tensors.push_back(prefix + "." + std::to_string(layer) + ".x.weight");
  }
  return tensors;
}

TEST(CheckLayers, EveryPromisedLayerHasATensor) {
  const auto check = [](const std::vector<std::string>& tensors, uint64_t layers,
                        uint64_t optional = 0) {
    return CheckLayers({tensors.begin(), tensors.end()},
                       {.layers = layers, .optional = optional, .source = "the manifest"});
  };
  for (const std::string prefix : {"model.layers", "blk", "transformer.h", "decoder.block"}) {
    EXPECT_TRUE(check(Layers(prefix, {2, 0, 1}), 3).ok());
    EXPECT_TRUE(check(Layers(prefix, {0, 1, 2, 3}), 3).ok());  // a draft head behind them
    EXPECT_THAT(
        std::string(check(Layers(prefix, {0, 2}), 5).message()),
        AllOf(HasSubstr("the manifest promises 5 layers"), HasSubstr("layer 1 and 3 to 4")));
    EXPECT_TRUE(check(Layers(prefix, {0, 1}), 3, 1).ok());  // made without its draft head
    EXPECT_FALSE(check(Layers(prefix, {0}), 3, 1).ok());
  }
  EXPECT_THAT(std::string(check({}, 4).message()), HasSubstr("layer 0 to 3"));
  EXPECT_TRUE(check({}, 1).ok());  // one layer needs no number
  EXPECT_FALSE(check(Layers("model.layers", {0}), ~uint64_t{0}).ok());

  // Layers of another tower do not stand in for the decoder's.
  for (const std::string tower :
       {"vision_tower.layers", "model.visual.blocks", "v.blk", "encoder.h"}) {
    std::vector<std::string> tensors = Layers(tower, {0, 1, 2, 3});
    tensors.push_back("model.layers.0.x.weight");
    EXPECT_FALSE(check(tensors, 4).ok()) << tower;
  }
  // Two spellings of one decoder add up.
  std::vector<std::string> both = Layers("model.layers", {0});
  both.push_back("layers.1.x.weight");
  EXPECT_TRUE(check(both, 2).ok());
}

TEST_F(Parts, ConfigJsonPromisesLayers) {
  Write({"a.safetensors", "b.safetensors"});
  const auto refusal = [&](const std::string& config) {
    dir_.Write("config.json", config);
    return std::string(Whole().message());
  };
  EXPECT_EQ(refusal(R"({"num_hidden_layers":2})"), "");
  EXPECT_EQ(refusal(R"({"num_hidden_layers":1})"), "");
  EXPECT_EQ(refusal(R"({"num_hidden_layers":null,"n_layer":"many"})"), "");
  for (const std::string config :
       {R"({"num_hidden_layers":4})", R"({"n_layer":4})", R"({"n_layers":4})",
        R"({"num_layers":4})", R"({"text_config":{"num_hidden_layers":4}})",
        R"({"num_hidden_layers":2,"text_config":{"num_hidden_layers":4}})",
        R"({"thinker_config":{"text_config":{"num_hidden_layers":4}}})",
        R"({"vision_config":{"num_hidden_layers":1},"llm_config":{"num_hidden_layers":4}})"}) {
    EXPECT_THAT(refusal(config), AllOf(HasSubstr("promises 4 layers"), HasSubstr("layer 2 to 3"),
                                       HasSubstr("config.json")))
        << config;
  }
  EXPECT_EQ(refusal(R"({"vision_config":{"num_hidden_layers":40}})"), "");
  // However the model is named.
  dir_.Write("config.json", R"({"num_hidden_layers":2})");
  EXPECT_THAT(std::string(WholeOf(dir_.At("a.safetensors")).message()), HasSubstr("layer 1"));
  EXPECT_THAT(std::string(WholeOf(dir_.At("b.safetensors")).message()), HasSubstr("layer 0"));
  // A tensor that the index does not name does not keep the promise.
  dir_.Write("model.safetensors.index.json",
             "{\"weight_map\":{\"" + TensorName(0) + "\":\"a.safetensors\"}}");
  EXPECT_THAT(std::string(Whole().message()), HasSubstr("layer 1"));
  std::filesystem::remove(dir_.At("model.safetensors.index.json"));
  // Without a manifest there is no promise.
  std::filesystem::remove(dir_.At("config.json"));
  EXPECT_TRUE(WholeOf(dir_.At("b.safetensors")).ok());
}

TEST_F(Parts, AGgufHeaderPromisesLayers) {
  const auto whole = [&](const std::string& architecture, const std::string& key, uint32_t count,
                         uint32_t draft = 0) {
    return WholeOf(dir_.Write(
        "m.gguf", GgufBuilder()
                      .Pair(key, kU32, LittleEndian(count))
                      .Pair("qwen3.nextn_predict_layers", kU32, LittleEndian(draft))
                      .Pair("general.architecture", kString, GgufBuilder::String(architecture))
                      .Tensor("blk.0.ffn_up.weight", {2, 1}, 30, 0)
                      .Data("\1\2\3\4")
                      .Build()));
  };
  EXPECT_TRUE(whole("qwen3", "qwen3.block_count", 1).ok());
  EXPECT_TRUE(whole("qwen3", "qwen3.block_count", 2, 1).ok());
  EXPECT_TRUE(whole("qwen3", "clip.vision.block_count", 27).ok());
  EXPECT_THAT(std::string(whole("qwen3", "qwen3.block_count", 4).message()),
              AllOf(HasSubstr("qwen3.block_count promises 4 layers"), HasSubstr("layer 1 to 3"),
                    HasSubstr("by name")));
}

}  // namespace
}  // namespace fulcrum::test

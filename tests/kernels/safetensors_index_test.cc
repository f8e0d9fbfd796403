// Indexes of sharded checkpoints: their grammar, and what becomes of files that are not as the
// index says.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/safetensors_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/weights/checkpoint.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::HasSubstr;

TEST(SafetensorsIndex, MapsTensorsToFilesInsideTheDirectory) {
  const auto index = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":12,"x":[1,{"y":null}]},"weight_map":{"b":"2.st","a":"sub/1.st"}})",
      "index");
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_EQ(index->entries.size(), 2u);
  EXPECT_EQ(index->entries[0].tensor, "a");
  EXPECT_EQ(index->entries[0].file, "sub/1.st");
}

TEST(SafetensorsIndex, RefusesEscapesDuplicatesAndOtherShapes) {
  const auto refused = [](const std::string& json) {
    const auto index = ParseSafetensorsIndex(json, "index");
    EXPECT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument) << json;
    return std::string(index.status().message());
  };
  for (const std::string file : {"../a", "/etc/passwd", "a/../../b", "", ".", "..", "a//b", "a/",
                                 "a\\\\b", "a\\u0000b", "./a"}) {
    EXPECT_THAT(refused("{\"weight_map\":{\"t\":\"" + file + "\"}}"), HasSubstr("inside")) << file;
  }
  for (const std::string json :
       {R"({"weight_map":{"t":"a","t":"b"}})", R"({"weight_map":{},"weight_map":{}})",
        R"({"metadata":{"total_size":1,"total_size":2},"weight_map":{}})",
        R"({"metadata":{"x":{"y":1,"y":1}},"weight_map":{}})",
        R"({"a":1,"weight_map":{},"a":1})"}) {
    EXPECT_THAT(refused(json), HasSubstr("duplicate key"));
  }
  for (const std::string json :
       {"", "{}", "[]", "1", "\"x\"", R"({"weight_map":1})", R"({"weight_map":"a"})",
        R"({"weight_map":[]})", R"({"weight_map":{"t":1}})", R"({"weight_map":{"t":{"u":"a"}}})",
        R"({"weight_map":{"t":["a"]}})", R"({"weight_map":{"t":null}})"}) {
    refused(json);
  }
  refused("{\"a\":" + std::string(100000, '[') + "}");
}

TEST(SafetensorsIndex, IsReadToItsEnd) {
  const std::string index = R"({"weight_map":{"t":"a"}})";
  const auto parse = [](const std::string& json) { return ParseSafetensorsIndex(json, "index"); };
  EXPECT_TRUE(parse(index).ok());
  EXPECT_TRUE(parse(" \n" + index + "\r\n\t ").ok());
  for (const std::string_view behind :
       {std::string_view("\0", 1), std::string_view("\0rubbish", 8), std::string_view("}"),
        std::string_view("{}"), std::string_view("\n\0", 2)}) {
    EXPECT_EQ(parse(index + std::string(behind)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << behind;
  }
  EXPECT_FALSE(parse("\xef\xbb\xbf" + index).ok());
  EXPECT_FALSE(parse("{\"\xff\":1," + index.substr(1)).ok());
}

TEST(SafetensorsIndex, TotalSizeIsAWholeNumberOrNoClaim) {
  const std::pair<const char*, std::optional<uint64_t>> kSizes[] = {
      {"12", 12},  {"0", 0},     {"1.2e1", 12},  {"12.0", 12},  {"12.5", {}},
      {"-12", {}}, {"null", {}}, {"\"12\"", {}}, {"1e300", {}}, {"true", {}}};
  for (const auto& [text, expected] : kSizes) {
    const auto index = ParseSafetensorsIndex(
        "{\"weight_map\":{},\"metadata\":{\"total_size\":" + std::string(text) + "}}", "index");
    ASSERT_TRUE(index.ok()) << text << index.status();
    EXPECT_EQ(index->total_size, expected) << text;
  }
  for (const std::string metadata : {"[]", R"({"total_size":[1]})", R"({"total_size":{}})"}) {
    EXPECT_FALSE(
        ParseSafetensorsIndex(R"({"weight_map":{},"metadata":)" + metadata + "}", "i").ok());
  }
}

// Two files of two tensors each, 4 bytes a tensor, and an index to be written.
class IndexedFolder : public ::testing::Test {
 protected:
  IndexedFolder() {
    WriteFile("a", 0);
    WriteFile("b", 1);
  }
  void WriteFile(const std::string& name, int layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".mlp.";
    dir_.Write(name + ".safetensors", SafetensorsBuilder()
                                          .Add(prefix + "up_proj.weight", "BF16", {1, 2}, "1234")
                                          .Add(prefix + "down_proj.weight", "BF16", {2, 1}, "1234")
                                          .Build());
  }
  static std::string Entries(const std::string& file, int layer) {
    const std::string prefix = "\"layers." + std::to_string(layer) + ".mlp.";
    return prefix + "up_proj.weight\":\"" + file + ".safetensors\"," + prefix +
           "down_proj.weight\":\"" + file + ".safetensors\"";
  }
  absl::StatusOr<TensorCatalog> Read(const std::string& map, const std::string& metadata = "{}") {
    dir_.Write("model.safetensors.index.json",
               "{\"metadata\":" + metadata + ",\"weight_map\":{" + map + "}}");
    return ReadCatalog(dir_.path());
  }
  const std::string both_ = Entries("a", 0) + "," + Entries("b", 1);
  TempDir dir_;
};

TEST_F(IndexedFolder, AFileThatIsNotThereRefusesTheModelAndNotTheOthersTensors) {
  std::filesystem::remove(dir_.At("b.safetensors"));
  const auto catalog = Read(both_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ(catalog->whole.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(catalog->whole.message()),
              AllOf(HasSubstr("index.json names"), HasSubstr("b.safetensors")));
  EXPECT_EQ(ImportCheckpoint(dir_.path()).status(), catalog->whole);
  EXPECT_TRUE(OpenTensor(*catalog, "layers.0.mlp.up_proj.weight").ok());
  EXPECT_FALSE(OpenTensor(*catalog, "layers.1.mlp.up_proj.weight").ok());
}

TEST_F(IndexedFolder, ATensorThatItsFileLacksIsNamed) {
  const auto catalog = Read(both_ + R"(,"layers.2.mlp.up_proj.weight":"b.safetensors")");
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ(catalog->whole.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(catalog->whole.message()),
              AllOf(HasSubstr("layers.2.mlp.up_proj.weight"), HasSubstr("b.safetensors"),
                    HasSubstr("1 such")));
}

TEST_F(IndexedFolder, ATensorThatTheIndexDoesNotNameIsSkipped) {
  const auto catalog = Read(Entries("a", 0) + R"(,"layers.1.mlp.up_proj.weight":"b.safetensors")");
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_TRUE(catalog->whole.ok()) << catalog->whole;
  EXPECT_EQ(catalog->tensors.size(), 4u);
  EXPECT_THAT(catalog->Find("layers.1.mlp.down_proj.weight")->undecided,
              AllOf(HasSubstr("index.json"), HasSubstr("does not name it")));
  EXPECT_FALSE(OpenTensor(*catalog, "layers.1.mlp.down_proj.weight").ok());
  EXPECT_TRUE(OpenTensor(*catalog, "layers.1.mlp.up_proj.weight").ok());
  // It may even be there twice.
  WriteFile("a", 1);
  WriteFile("b", 1);
  const auto twice = Read(R"("layers.1.mlp.up_proj.weight":"b.safetensors",
                             "layers.1.mlp.down_proj.weight":"a.safetensors")");
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_TRUE(twice->whole.ok()) << twice->whole;
  EXPECT_EQ(twice->tensors.size(), 2u);
}

TEST_F(IndexedFolder, TotalSizeThatFitsNoCountIsRefused) {
  const auto whole = [&](const std::string& map, const std::string& size) {
    const auto catalog = Read(map, "{\"total_size\":" + size + "}");
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    return catalog->whole;
  };
  EXPECT_TRUE(whole(both_, "16").ok());
  // Of all tensors in the files, where the index names fewer.
  EXPECT_TRUE(
      whole(Entries("a", 0) + R"(,"layers.1.mlp.up_proj.weight":"b.safetensors")", "16").ok());
  EXPECT_THAT(std::string(whole(both_, "20").message()),
              AllOf(HasSubstr("total_size is 20"), HasSubstr("16 bytes"), HasSubstr("missing")));
  EXPECT_THAT(std::string(whole(both_, "12").message()), HasSubstr("more than belongs"));
  EXPECT_THAT(std::string(whole(Entries("a", 0), "16").message()), HasSubstr("missing"));
}

TEST_F(IndexedFolder, TotalSizeFromBeforeQuantisationIsKnown) {
  // 9 weights and 1 scale, counted as BF16, with the scale and without.
  dir_.Write("a.safetensors", SafetensorsBuilder()
                                  .Add("x.weight_scale_inv", "F32", {1, 1}, ArrayBytes<float>({1}))
                                  .Add("x.weight", "F8_E4M3", {3, 3}, std::string(9, '8'))
                                  .Build());
  const std::string map = R"("x.weight":"a.safetensors","x.weight_scale_inv":"a.safetensors")";
  for (const auto& [size, fits] : {std::pair{"20", true},
                                   {"18", true},
                                   {"13", true},
                                   {"26", false},
                                   {"9", false},
                                   {"19", false}}) {
    const auto catalog = Read(map, "{\"total_size\":" + std::string(size) + "}");
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    EXPECT_EQ(catalog->whole.ok(), fits) << size << catalog->whole;
  }
}

TEST_F(IndexedFolder, OneFileOfSeveralIsNotTheModel) {
  ASSERT_TRUE(Read(both_)->whole.ok());
  const auto catalog = ReadCatalog(dir_.At("a.safetensors"));
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_THAT(std::string(catalog->whole.message()),
              AllOf(HasSubstr("one of 2 files"), HasSubstr("index.json")));
  EXPECT_TRUE(OpenTensor(*catalog, "layers.0.mlp.up_proj.weight").ok());
  // Where the index has this file alone, what it says counts as if it had been named.
  ASSERT_TRUE(Read(R"("layers.0.mlp.up_proj.weight":"a.safetensors")")->whole.ok());
  const auto alone = ReadCatalog(dir_.At("a.safetensors"));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_TRUE(alone->whole.ok()) << alone->whole;
  EXPECT_THAT(alone->Find("layers.0.mlp.down_proj.weight")->undecided,
              HasSubstr("does not name it"));
  // A file that the index does not have is a model of its own.
  EXPECT_TRUE(ReadCatalog(dir_.At("b.safetensors"))->whole.ok());
}

TEST_F(IndexedFolder, AnIndexOfAnotherNameCountsWhereItIsTheOnlyOne) {
  const std::string map = "{\"weight_map\":{" + Entries("a", 0) + "}}";
  dir_.Write("diffusion_model.safetensors.index.json", map);
  dir_.Write("pytorch_model.bin.index.json", "of another container");
  const auto catalog = ReadCatalog(dir_.path());
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_THAT(catalog->files, ::testing::ElementsAre(dir_.At("a.safetensors")));
  dir_.Write("diffusion_model.fp16.safetensors.index.json", map);
  EXPECT_THAT(std::string(ReadCatalog(dir_.path()).status().message()),
              AllOf(HasSubstr("several indexes"), HasSubstr("fp16")));
  EXPECT_TRUE(ReadCatalog(dir_.At("diffusion_model.safetensors.index.json")).ok());
}

}  // namespace
}  // namespace fulcrum::test

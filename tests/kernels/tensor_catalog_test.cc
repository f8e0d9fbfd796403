// What a path is read as: download caches made of links, links that lead nowhere, the caller's say
// over what is opened, and tensors that are only listed while the rest of a file is served.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/tensor_catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kernels/weights/checkpoint.h"
#include "kernels/weights/file_links.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

constexpr char kUp[] = "model.layers.0.mlp.up_proj.weight";
constexpr char kDown[] = "model.layers.1.mlp.down_proj.weight";

std::string OneTensor(const std::string& name) {
  return SafetensorsBuilder().Add(name, "BF16", {1, 2}, "1234").Build();
}
std::string ErrorOf(const std::string& path, absl::StatusCode code) {
  const auto catalog = ReadCatalog(path);
  EXPECT_EQ(catalog.status().code(), code) << catalog.status();
  return std::string(catalog.status().message());
}

// The layout of a Hugging Face cache: every name in a snapshot is a link to a blob, whose name is a
// hash.
class DownloadCache : public ::testing::Test {
 protected:
  DownloadCache() {
    Add("model-00001-of-00002.safetensors", "7d1a", OneTensor(kUp));
    Add("model-00002-of-00002.safetensors", "03bc", OneTensor(kDown));
    Add("model.safetensors.index.json", "f00d",
        "{\"weight_map\":{\"" + std::string(kUp) + "\":\"model-00001-of-00002.safetensors\",\"" +
            kDown + "\":\"model-00002-of-00002.safetensors\"}}");
    Add("config.json", "c0de", R"({"num_hidden_layers":2})");
  }
  void Add(const std::string& name, const std::string& blob, const std::string& content) {
    dir_.Write("hub/blobs/" + blob, content);
    fs::create_directories(Snapshot());
    fs::create_symlink("../../blobs/" + blob, Snapshot() + "/" + name);
  }
  std::string Snapshot() const { return dir_.At("hub/snapshots/REV"); }
  TempDir dir_;
};

TEST_F(DownloadCache, IsReadByItsNames) {
  const std::string index = Snapshot() + "/model.safetensors.index.json";
  fs::create_symlink(Snapshot(), dir_.At("current"));
  for (const std::string& path :
       {Snapshot(), index, dir_.At("current"), dir_.At("current/model.safetensors.index.json")}) {
    const auto catalog = ReadCatalog(path);
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    EXPECT_TRUE(catalog->whole.ok()) << catalog->whole;
    EXPECT_EQ(catalog->tensors.size(), 2u);
    EXPECT_THAT(catalog->files, Each(HasSubstr("of-00002.safetensors")));
    EXPECT_TRUE(OpenTensor(path, kUp).ok());
    EXPECT_EQ(ImportCheckpoint(path)->shards.size(), 2u);
  }
  // One part, by its name.
  const auto part = ReadCatalog(Snapshot() + "/model-00002-of-00002.safetensors");
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(std::string(part->whole.message()), HasSubstr("part 1 is missing"));
  EXPECT_TRUE(OpenTensor(*part, kDown).ok());
}

TEST_F(DownloadCache, WithoutAnIndexToo) {
  fs::remove(Snapshot() + "/model.safetensors.index.json");
  EXPECT_TRUE(ReadCatalog(Snapshot())->whole.ok());
  fs::remove(Snapshot() + "/model-00001-of-00002.safetensors");
  EXPECT_THAT(std::string(ReadCatalog(Snapshot())->whole.message()),
              HasSubstr("part 1 is missing"));
}

TEST_F(DownloadCache, ABlobHasNoNeighboursAndNoKind) {
  const std::string error = ErrorOf(dir_.At("hub/blobs/f00d"), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(error, AllOf(HasSubstr("as JSON does"), HasSubstr("NAME.index.json"),
                           HasSubstr("not in blobs"), Not(HasSubstr("header length"))));
  EXPECT_TRUE(OpenTensor(dir_.At("hub/blobs/7d1a"), kUp).ok());
}

TEST_F(DownloadCache, ABlobThatIsMissingIsNamedWithItsLink) {
  fs::remove(dir_.At("hub/blobs/03bc"));
  const auto catalog = ReadCatalog(Snapshot());
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ(catalog->whole.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(catalog->whole.message()),
              AllOf(HasSubstr("model-00002-of-00002.safetensors (a link to"),
                    HasSubstr("blobs/03bc, which does not exist)")));
  // An index that is a link into nothing is no folder without an index.
  fs::remove(dir_.At("hub/blobs/f00d"));
  EXPECT_THAT(ErrorOf(Snapshot(), absl::StatusCode::kNotFound),
              AllOf(HasSubstr("index.json"), HasSubstr("f00d, which does not exist")));
  fs::remove(dir_.At("hub/blobs/c0de"));
  fs::remove(Snapshot() + "/model.safetensors.index.json");
  EXPECT_THAT(
      ErrorOf(Snapshot() + "/model-00001-of-00002.safetensors", absl::StatusCode::kNotFound),
      AllOf(HasSubstr("config.json"), HasSubstr("c0de, which does not exist")));
}

TEST_F(DownloadCache, TheCallerIsAskedBeforeAnythingIsOpened) {
  std::vector<std::string> asked;
  const auto all = [&](const std::string& path) {
    asked.push_back(path);
    return absl::OkStatus();
  };
  ASSERT_TRUE(ReadCatalog(Snapshot(), all).ok());
  for (const std::string name :
       {"", "/model.safetensors.index.json", "/config.json", "/model-00001-of-00002.safetensors",
        "/model-00002-of-00002.safetensors"}) {
    EXPECT_THAT(asked, Contains(Snapshot() + name));
  }
  // Each refusal ends the reading, with the caller's words alone.
  for (const std::string& refused : asked) {
    const auto catalog = ReadCatalog(Snapshot(), [&](const std::string& path) {
      return path == refused ? absl::PermissionDeniedError("outside") : absl::OkStatus();
    });
    EXPECT_EQ(catalog.status(), absl::PermissionDeniedError("outside")) << refused;
  }
  const std::string gguf = dir_.Write("m.gguf", GgufBuilder().Build());
  EXPECT_EQ(ReadCatalog(gguf, [](const std::string&) { return absl::AbortedError("no"); }).status(),
            absl::AbortedError("no"));
}

TEST(FileLinks, LeadFromNameToName) {
  const TempDir dir;
  const std::string file = dir.Write("sub/file", "x");
  fs::create_symlink("sub/file", dir.At("a"));
  fs::create_symlink(dir.At("a"), dir.At("b"));
  EXPECT_THAT(LinkChain(dir.At("b")), ElementsAre(dir.At("b"), dir.At("a"), file));
  EXPECT_THAT(LinkChain(file), ElementsAre(file));
  EXPECT_EQ(LinkText(file), "");
  EXPECT_EQ(LinkText(dir.At("b")),
            dir.At("b") + " (a link to " + dir.At("a") + ", a link to " + file + ")");
  EXPECT_EQ(FolderOf("file"), ".");
  EXPECT_EQ(FolderOf("/file"), "/");
  EXPECT_EQ(FileName("/a/b.c"), "b.c");
  EXPECT_EQ(FileName("b.c"), "b.c");
}

TEST(FileLinks, ThatLeadNowhereInACircleOrToAFolder) {
  const TempDir dir;
  fs::create_symlink("gone", dir.At("a"));
  fs::create_symlink("a", dir.At("b"));
  fs::create_symlink("circle", dir.At("circle"));
  fs::create_directory(dir.At("folder"));
  fs::create_symlink("folder", dir.At("w.safetensors"));
  EXPECT_TRUE(NameExists(dir.At("b")));
  EXPECT_FALSE(NameExists(dir.At("gone")));
  EXPECT_THAT(ErrorOf(dir.At("b"), absl::StatusCode::kNotFound),
              AllOf(HasSubstr(dir.At("b") + " (a link to " + dir.At("a")),
                    HasSubstr(dir.At("gone") + ", which does not exist")));
  EXPECT_LT(LinkChain(dir.At("circle")).size(), 100u);
  EXPECT_THAT(ErrorOf(dir.At("circle"), absl::StatusCode::kFailedPrecondition),
              HasSubstr("and so on to"));
  // As a member of its folder; named by itself it is that folder.
  EXPECT_THAT(ErrorOf(dir.path(), absl::StatusCode::kInvalidArgument),
              AllOf(HasSubstr("w.safetensors (a link to"), HasSubstr("is a folder")));
  EXPECT_THAT(ErrorOf(dir.At("w.safetensors"), absl::StatusCode::kInvalidArgument),
              HasSubstr("0 safetensors and 0 GGUF"));
}

TEST(ListedTensors, AreSkippedWithAReasonAndTheRestIsServed) {
  const TempDir dir;
  const auto skip = [&](const std::string& name, const std::string& dtype,
                        const std::vector<int64_t>& shape, const std::string& data) {
    const std::string path = dir.Write("w.safetensors", SafetensorsBuilder()
                                                            .Add(kUp, "BF16", {1, 2}, "1234")
                                                            .Add(name, dtype, shape, data)
                                                            .Build());
    const auto checkpoint = ImportCheckpoint(path);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok() || checkpoint->skipped.size() != 1) return std::string("not skipped");
    EXPECT_EQ(checkpoint->shards.size(), 1u);
    EXPECT_FALSE(OpenTensor(path, name).ok());
    return checkpoint->skipped[0].reason;
  };
  EXPECT_THAT(skip("table.weight", "F8_E5M2", {2, 2}, "1234"), HasSubstr("F8_E5M2"));
  EXPECT_THAT(skip("table.weight", "F8_E4M3FNUZ", {2, 2}, "1234"), HasSubstr("F8_E4M3FNUZ"));
  EXPECT_THAT(skip("table.weight", "F4", {2, 4}, "1234"), HasSubstr("F4"));
  EXPECT_THAT(skip("table.weight", "F6_E2M3", {4, 1}, "123"), HasSubstr("F6_E2M3"));
  EXPECT_THAT(skip("table.weight", "I4", {2, 4}, "1234"), HasSubstr("unknown element type 'I4'"));
  EXPECT_THAT(skip("table.weight", "MXFP9", {3, 5}, "1"), HasSubstr("MXFP9"));
  EXPECT_THAT(skip("table.weight", "F32", {0}, ""), HasSubstr("1-D"));
  EXPECT_THAT(skip("table.weight", "BF16", {0, 4}, ""), HasSubstr("no weights"));
  EXPECT_THAT(skip("table.weight", "F8_E4M3", {4, 0}, ""), HasSubstr("no weights"));
  EXPECT_THAT(skip("table.weight", "BF16", {1, 1, 1, 1, 2, 1}, "1234"), HasSubstr("6-D"));
  EXPECT_THAT(skip("__marker__", "U8", {0}, ""), HasSubstr("not named *.weight"));
}

TEST(ListedTensors, ANameInSeveralFilesRefusesItselfAlone) {
  const TempDir dir;
  const auto write = [&](const std::string& file, const std::string& own, const std::string& shared,
                         const std::vector<int64_t>& shape, const std::string& data) {
    dir.Write(file, SafetensorsBuilder()
                        .Add(own, "BF16", {1, 2}, "1234")
                        .Add(shared, "BF16", shape, data)
                        .Build());
  };
  // A projection: the model would lack it. The others can be loaded by name.
  write("a.safetensors", kUp, "lm_head.weight", {1, 2}, "1234");
  write("b.safetensors", kDown, "lm_head.weight", {1, 2}, "5678");
  EXPECT_THAT(std::string(ImportCheckpoint(dir.path()).status().message()),
              AllOf(HasSubstr("'lm_head.weight': duplicate tensor name"),
                    HasSubstr("a.safetensors"), HasSubstr("b.safetensors")));
  EXPECT_FALSE(OpenTensor(dir.path(), "lm_head.weight").ok());
  EXPECT_TRUE(OpenTensor(dir.path(), kUp).ok());
  EXPECT_TRUE(OpenTensor(dir.At("a.safetensors"), "lm_head.weight").ok());
  // Also where one of them is of a type that nothing knows, whichever comes first.
  const std::string odd =
      SafetensorsBuilder().Add("lm_head.weight", "F2_NEXT", {1, 2}, "1").Build();
  for (const std::string name : {"0.safetensors", "z.safetensors"}) {
    dir.Write(name, odd);
    EXPECT_THAT(std::string(ImportCheckpoint(dir.path()).status().message()),
                HasSubstr("duplicate tensor name"));
    fs::remove(dir.At(name));
  }
  // What is not served by its name, or holds nothing, is no loss.
  for (const auto& [name, shape, data] :
       {std::tuple<std::string, std::vector<int64_t>, std::string>{"norm.weight", {2}, "1234"},
        {"__marker__", {0}, ""},
        {"empty.weight", {0, 2}, ""}}) {
    write("a.safetensors", kUp, name, shape, data);
    write("b.safetensors", kDown, name, shape, data);
    const auto checkpoint = ImportCheckpoint(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ(checkpoint->shards.size(), 2u);
    EXPECT_EQ(checkpoint->skipped.size(), 1u);
  }
}

TEST(ListedTensors, OfTheFolderItself) {
  const TempDir dir;
  dir.Write("w.safetensors", OneTensor(kUp));
  // What file managers leave beside files on foreign disks.
  dir.Write("._w.safetensors", "not a safetensors file");
  dir.Write(".hidden.gguf", "nor this");
  const auto catalog = ReadCatalog(dir.path());
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_THAT(catalog->files, ElementsAre(dir.At("w.safetensors")));
}

TEST(ListedTensors, AHeaderWhoseLengthBeginsLikeJsonIsAHeader) {
  // 123 is '{', the first byte of the length.
  std::string header =
      "{\"" + std::string(kUp) + R"(":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}})";
  header.resize(123, ' ');
  const TempDir dir;
  EXPECT_TRUE(OpenTensor(dir.Write("w.safetensors", Safetensors(header, "1234")), kUp).ok());
}

}  // namespace
}  // namespace fulcrum::test

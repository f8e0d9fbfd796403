// Files under the weight roots are opened by the path as it is named, and only while they are
// there.
// SPDX-License-Identifier: Apache-2.0
#include "service/weight_roots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kernels/weights/checkpoint.h"
#include "tests/support/weight_files.h"

namespace fulcrum::service {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using ::testing::HasSubstr;

std::string File(const std::string& tensor, char byte) {
  return test::SafetensorsBuilder().Add(tensor, "BF16", {2, 2}, std::string(8, byte)).Build();
}

class WeightRootsTest : public ::testing::Test {
 protected:
  WeightRootsTest() {
    outside_ = dir_.Write("outside.safetensors", File("w.weight", 7));
    fs::create_directory(dir_.At("root"));
    roots_ = std::make_unique<WeightRoots>(std::vector<std::string>{dir_.At("root")});
  }
  // A name in a snapshot of a download cache: a link to a blob.
  void Snapshot(const std::string& name, const std::string& bytes) {
    const std::string blob = "root/hub/blobs/" + std::to_string(std::hash<std::string>()(name));
    dir_.Write(blob, bytes);
    fs::create_directories(dir_.At("root/hub/snapshots/rev"));
    fs::create_symlink("../../blobs/" + fs::path(blob).filename().string(),
                       dir_.At("root/hub/snapshots/rev/" + name));
  }
  absl::Status Read(const std::string& path) const {
    const auto admitted = roots_->Admit(path);
    return admitted.ok() ? roots_->Read(*admitted).status() : admitted.status();
  }

  TempDir dir_;
  std::string outside_;
  std::unique_ptr<WeightRoots> roots_;
};

TEST_F(WeightRootsTest, LinksKeepTheirNames) {
  Snapshot("model-00001-of-00002.safetensors", File("a.weight", 1));
  Snapshot("model-00002-of-00002.safetensors", File("b.weight", 2));
  Snapshot("model.safetensors.index.json",
           R"({"weight_map":{"a.weight":"model-00001-of-00002.safetensors",)"
           R"("b.weight":"model-00002-of-00002.safetensors"}})");
  for (const std::string path :
       {"hub/snapshots/rev/model.safetensors.index.json", "hub/snapshots/rev"}) {
    for (const std::string& named : {path, dir_.At("root/" + path)}) {
      const auto admitted = roots_->Admit(named);
      ASSERT_TRUE(admitted.ok()) << admitted.status();
      const auto catalog = roots_->Read(*admitted);
      ASSERT_TRUE(catalog.ok()) << catalog.status();
      EXPECT_TRUE(OpenTensor(*catalog, "b.weight").ok());
      EXPECT_THAT(catalog->files[1], HasSubstr("snapshots/rev/model-00002-of-00002.safetensors"));
    }
  }
}

TEST_F(WeightRootsTest, ALinkThatIsPointedElsewhereAfterTheCheckOpensNothing) {
  dir_.Write("root/good.safetensors", File("w.weight", 1));
  fs::create_symlink("good.safetensors", dir_.At("root/link.safetensors"));
  const auto admitted = roots_->Admit("link.safetensors");
  ASSERT_TRUE(admitted.ok());
  EXPECT_TRUE(roots_->Read(*admitted).ok());
  fs::remove(dir_.At("root/link.safetensors"));
  fs::create_symlink(outside_, dir_.At("root/link.safetensors"));
  EXPECT_TRUE(absl::IsPermissionDenied(roots_->Read(*admitted).status()));
  // A folder on the way as well.
  dir_.Write("root/inner/w.safetensors", File("w.weight", 1));
  const auto deep = roots_->Admit("inner/w.safetensors");
  ASSERT_TRUE(deep.ok());
  dir_.Write("elsewhere/w.safetensors", File("w.weight", 7));
  fs::remove_all(dir_.At("root/inner"));
  fs::create_symlink(dir_.At("elsewhere"), dir_.At("root/inner"));
  EXPECT_TRUE(absl::IsPermissionDenied(roots_->Read(*deep).status()));
}

TEST_F(WeightRootsTest, WhatIsOpenStaysTheFileItWas) {
  const std::string path = dir_.Write("root/w.safetensors", File("w.weight", 1));
  const auto file = OpenWeightFile(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*(*file)->Location(), fs::canonical(path).string());
  // Renamed over, as replacing does: the descriptor's file is the old one, and still of the root.
  dir_.Write("root/new", File("w.weight", 2));
  fs::rename(dir_.At("root/new"), path);
  EXPECT_THAT(*(*file)->Location(), HasSubstr(path + " (deleted)"));
  // Moved away: it is judged by where it lies now.
  const std::string moved = dir_.At("root/moved");
  const auto second = OpenWeightFile(path);
  fs::rename(path, moved);
  EXPECT_EQ(*(*second)->Location(), fs::canonical(moved).string());
}

TEST_F(WeightRootsTest, AnIndexReachesNoFileOutside) {
  dir_.Write("root/model.safetensors.index.json", R"({"weight_map":{"w.weight":"l.safetensors"}})");
  fs::create_symlink(outside_, dir_.At("root/l.safetensors"));
  EXPECT_TRUE(absl::IsPermissionDenied(Read("model.safetensors.index.json")));
  EXPECT_TRUE(absl::IsPermissionDenied(Read(dir_.At("root"))));
}

}  // namespace
}  // namespace fulcrum::service

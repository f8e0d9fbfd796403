// A file that appears whole or not at all, and what it does to what is at its path already.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/weight_files.h"

namespace fulcrum::test {
namespace {

using Existing = OutputFile::Existing;

std::vector<std::string> Names(const TempDir& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

// Whether files of this directory can be without a name; where not, the documented one is used.
bool CanBeNameless(const TempDir& dir) {
  const int fd = open(dir.path().c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

std::unique_ptr<OutputFile> Written(const std::string& path, Existing existing) {
  auto file = OutputFile::Create(path, 3, existing);
  EXPECT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Write(0, std::as_bytes(std::span("new", 3))).ok());
  return *std::move(file);
}

TEST(OutputFile, AppearsWhenItIsWhole) {
  const TempDir dir;
  for (const Existing existing : {Existing::kRefuse, Existing::kReplace}) {
    const auto file = Written(dir.At("out"), existing);
    if (CanBeNameless(dir)) {
      EXPECT_TRUE(Names(dir).empty());  // what a signal would leave
    } else {
      ASSERT_EQ(Names(dir).size(), 1u);
      EXPECT_EQ(Names(dir)[0].size(), std::string("out.XXXXXX").size());
    }
    ASSERT_TRUE(file->Commit().ok());
    EXPECT_EQ(ReadFile(dir.At("out")), "new");
    EXPECT_THAT(Names(dir), testing::ElementsAre("out"));
    std::filesystem::remove(dir.At("out"));
  }
  Written(dir.At("out"), Existing::kRefuse).reset();
  EXPECT_TRUE(Names(dir).empty());
}

TEST(OutputFile, AnExistingFileIsReplacedOnlyWhenAsked) {
  const TempDir dir;
  const std::string path = dir.Write("out", "old");
  EXPECT_EQ(OutputFile::Create(path, 3, Existing::kRefuse).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(path), "old");
  ASSERT_TRUE(Written(path, Existing::kReplace)->Commit().ok());
  EXPECT_EQ(ReadFile(path), "new");
  EXPECT_THAT(Names(dir), testing::ElementsAre("out"));
}

TEST(OutputFile, AFileThatCameMeanwhileIsKept) {
  const TempDir dir;
  const auto file = Written(dir.At("out"), Existing::kRefuse);
  dir.Write("out", "old");
  EXPECT_EQ(file->Commit().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(dir.At("out")), "old");
}

TEST(OutputFile, WhatIsNoRegularFileIsNeverReplaced) {
  const TempDir dir;
  dir.Write("file", "old");
  std::filesystem::create_symlink("file", dir.At("link"));
  std::filesystem::create_directory(dir.At("folder"));
  ASSERT_EQ(mkfifo(dir.At("pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "folder", "pipe"}) {
    const auto before = std::filesystem::symlink_status(dir.At(name)).type();
    for (const Existing existing : {Existing::kRefuse, Existing::kReplace}) {
      EXPECT_EQ(OutputFile::Create(dir.At(name), 3, existing).status().code(),
                absl::StatusCode::kFailedPrecondition)
          << name;
    }
    EXPECT_EQ(std::filesystem::symlink_status(dir.At(name)).type(), before);
  }
  EXPECT_EQ(ReadFile(dir.At("file")), "old");
  EXPECT_EQ(OutputFile::Create("/dev/null", 3, Existing::kReplace).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace fulcrum::test

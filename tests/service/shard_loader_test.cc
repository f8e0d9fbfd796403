// Which files a caller can reach, and the load at start with its failures.
// SPDX-License-Identifier: Apache-2.0
#include "service/shard_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "kernels/backend_factory.h"
#include "tests/support/fake_backend.h"
#include "tests/support/weight_files.h"

namespace fulcrum::service {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A bf16 matrix whose bytes follow from `tag`.
std::string Bf16File(int64_t n, int64_t k, uint16_t tag, const std::string& tensor = "w.weight") {
  std::vector<uint16_t> values;
  for (int64_t i = 0; i < n * k; ++i) values.push_back(static_cast<uint16_t>(0x3f00 + tag + i % 7));
  return test::SafetensorsBuilder().Add(tensor, "BF16", {n, k}, test::ArrayBytes(values)).Build();
}

std::unique_ptr<Backend> Cpu(int64_t memory_bytes) {
  auto backends = MakeBackends("cpu", {.cpu_threads = 1, .memory_budget_bytes = memory_bytes});
  EXPECT_TRUE(backends.ok()) << backends.status();
  return backends.ok() ? std::move(backends->front()) : nullptr;
}

class ShardLoaderTest : public ::testing::Test {
 protected:
  ShardLoaderTest() {
    backend_ = Cpu(0);
    store_ = std::make_unique<ShardStore>(std::vector<Backend*>{backend_.get()}, nullptr);
    fs::create_directory(dir_.At("root"));
    fs::create_directory(dir_.At("root-beside"));
    good_ = dir_.Write("root/good.safetensors", Bf16File(8, 64, 1));
    dir_.Write("root/sub/good.safetensors", Bf16File(8, 64, 2));
    outside_ = dir_.Write("outside.safetensors", Bf16File(8, 64, 3));
    dir_.Write("root-beside/x.safetensors", Bf16File(8, 64, 4));
    loader_ = std::make_unique<ShardLoader>(*store_, std::vector<std::string>{dir_.At("root")});
  }

  absl::Status Open(const std::string& path) const {
    return loader_->Open({.path = path, .tensor = "w.weight"}).status();
  }
  LoadPlan Plan(const std::vector<ModelConfig>& models) const {
    Config config;
    config.models = models;
    LoadPlan plan = OpenModels(config);
    PlaceModels({backend_.get()}, plan);
    return plan;
  }
  LoadSummary LoadAll(LoadPlan plan) {
    EXPECT_TRUE(plan.problems.empty()) << plan.status();
    return loader_->LoadAll(
        std::move(plan), [this](const LoadProgress& p) { progress_.push_back(p); }, stop_);
  }
  ShardInfo InfoOf(const std::string& name) const {
    for (const ShardInfo& info : store_->List()) {
      if (info.name == name) return info;
    }
    ADD_FAILURE() << name << " is not listed";
    return {};
  }

  TempDir dir_;
  std::string good_, outside_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<ShardLoader> loader_;
  std::vector<LoadProgress> progress_;
  std::atomic<bool> stop_ = false;
};

TEST_F(ShardLoaderTest, FilesUnderARootOpen) {
  EXPECT_TRUE(Open(good_).ok()) << Open(good_);
  EXPECT_TRUE(Open("good.safetensors").ok());
  EXPECT_TRUE(Open("sub/good.safetensors").ok());
  EXPECT_TRUE(Open("./sub//good.safetensors").ok());
  fs::create_symlink(dir_.At("root/sub"), dir_.At("root/inner"));
  EXPECT_TRUE(Open("inner/good.safetensors").ok());
  fs::create_symlink(dir_.At("root"), dir_.At("alias"));
  EXPECT_TRUE(Open(dir_.At("alias/good.safetensors")).ok());  // what counts is where it ends
}

TEST_F(ShardLoaderTest, NothingOutsideARootOpensOrIsToldOf) {
  fs::create_symlink(outside_, dir_.At("root/link.safetensors"));
  fs::create_symlink(dir_.path(), dir_.At("root/up"));
  fs::create_symlink(dir_.At("absent"), dir_.At("root/dangling"));
  fs::create_symlink(dir_.At("root/loop"), dir_.At("root/loop"));
  std::string answer;
  for (const std::string& path :
       {outside_, dir_.At("absent"), std::string("/etc/passwd"), std::string("/etc/absent/x"),
        std::string("/"), std::string("link.safetensors"), std::string("up/outside.safetensors"),
        std::string("up/absent"), std::string("up/absent/deeper"), std::string("dangling"),
        std::string("dangling/x"), std::string("loop"), dir_.At("root-beside/x.safetensors"),
        std::string("up/root-beside/x.safetensors"), std::string("/proc/self/environ")}) {
    const absl::Status status = Open(path);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << path << ": " << status;
    // The same words whether or not something is there.
    if (answer.empty()) answer = status.ToString();
    EXPECT_EQ(status.ToString(), answer) << path;
  }
  EXPECT_THAT(answer, HasSubstr("weight_roots"));
}

TEST_F(ShardLoaderTest, PathsThatAreNoPaths) {
  for (const std::string& path :
       {std::string(), std::string("../outside.safetensors"), std::string("sub/../../outside"),
        std::string(".."), dir_.At("root/../outside.safetensors"),
        std::string("good.safetensors\0.txt", 21), std::string(5000, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Open(path))) << path << ": " << Open(path);
  }
  // Characters that only look like dots and slashes are names like any other, and not there.
  for (const char* path : {"\u2025/outside.safetensors", "..\u2215outside.safetensors",
                           "\xc0\xae\xc0\xae/outside.safetensors", "%2e%2e/outside.safetensors",
                           "good.safetensors/x", "absent", "sub/absent/deeper"}) {
    EXPECT_TRUE(absl::IsNotFound(Open(path))) << path << ": " << Open(path);
  }
}

TEST_F(ShardLoaderTest, AnIndexCannotReachOutEither) {
  dir_.Write("root/model.safetensors.index.json",
             "{\"weight_map\":{\"w.weight\":\"../outside.safetensors\"}}");
  EXPECT_FALSE(Open("model.safetensors.index.json").ok());
  dir_.Write("root/model.safetensors.index.json",
             "{\"weight_map\":{\"w.weight\":\"l.safetensors\"}}");
  fs::create_symlink(outside_, dir_.At("root/l.safetensors"));
  EXPECT_TRUE(absl::IsPermissionDenied(Open("model.safetensors.index.json")));
}

TEST_F(ShardLoaderTest, WithoutRootsNothingOpens) {
  const ShardLoader none(*store_, {});
  EXPECT_TRUE(
      absl::IsFailedPrecondition(none.Open({.path = good_, .tensor = "w.weight"}).status()));
}

TEST_F(ShardLoaderTest, SlicesAsAskedOrRefused) {
  WeightFileRef file{
      .path = good_, .tensor = "w.weight", .row_begin = 2, .row_end = 5, .col_begin = 16};
  const auto slice = loader_->Open(file);
  ASSERT_TRUE(slice.ok()) << slice.status();
  EXPECT_EQ((*slice)->spec().n, 3);
  EXPECT_EQ((*slice)->spec().k, 48);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{5, 5},
                                                                           {5, 2},
                                                                           {-1, 2},
                                                                           {0, 9},
                                                                           {8, 0},
                                                                           {kMax, 0},
                                                                           {0, kMax},
                                                                           {kMin, kMax},
                                                                           {2, kMin}}) {
    file.row_begin = begin;
    file.row_end = end;
    EXPECT_TRUE(absl::IsInvalidArgument(loader_->Open(file).status())) << begin << " " << end;
  }
  EXPECT_TRUE(absl::IsNotFound(loader_->Open({.path = good_, .tensor = "v"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(loader_->Open({.path = good_, .tensor = ""}).status()));
}

ExplicitShardConfig Explicit(const std::string& name, const std::string& path) {
  ExplicitShardConfig config;
  config.name = name;
  config.path = path;
  config.tensor = "w.weight";
  return config;
}

TEST_F(ShardLoaderTest, WhatHeadersTellIsInThePlansProblemsAndNothingIsLost) {
  const std::string whole = Bf16File(8, 64, 1);
  const std::string truncated =
      dir_.Write("truncated.safetensors", whole.substr(0, whole.size() - 10));
  std::vector<ExplicitShardConfig> shards = {Explicit("absent", dir_.At("absent")),
                                             Explicit("truncated", truncated),
                                             Explicit("device", good_), Explicit("good", good_)};
  shards[2].device = "cuda:7";
  const LoadPlan plan = Plan({{.model = "broken", .source = CheckpointPath{dir_.At("absent")}},
                              {.model = "unknown", .source = SyntheticName{"no-such-model"}},
                              {.model = "m", .source = shards}});
  ASSERT_EQ(plan.problems.size(), 5u) << plan.status();
  EXPECT_THAT(plan.problems[0], AllOf(HasSubstr("models/broken: "), HasSubstr(dir_.At("absent"))));
  EXPECT_THAT(plan.problems[1], HasSubstr("no-such-model"));
  EXPECT_THAT(plan.problems[2], HasSubstr("models/m/shards/absent: "));
  EXPECT_THAT(plan.problems[3], AllOf(HasSubstr("shards/truncated: "), HasSubstr("cut short")));
  EXPECT_THAT(plan.problems[4], AllOf(HasSubstr("shards/device: "), HasSubstr("cpu:0")));
  EXPECT_TRUE(absl::IsInvalidArgument(plan.status()));
}

TEST_F(ShardLoaderTest, OneBadShardIsListedAsFailedAndTheOthersServe) {
  std::string rows = Bf16File(8, 64, 1);
  rows.replace(rows.size() - 2, 2, "\xc0\x7f");  // a NaN
  const std::string nan = dir_.Write("nan.safetensors", rows);
  std::vector<ExplicitShardConfig> shards = {Explicit("hash", good_), Explicit("nan", nan),
                                             Explicit("allowed", nan), Explicit("good", good_)};
  shards[0].expect_hash = std::string(64, '0');
  shards[1].family = Family::kAttnO;
  shards[2].allow_nan = true;
  const LoadSummary summary = LoadAll(Plan({{.model = "m", .source = shards}}));

  EXPECT_EQ(summary.loaded, 2);
  EXPECT_GT(summary.resident_bytes, 0);
  EXPECT_FALSE(summary.stopped);
  std::vector<std::string> failed;
  for (const auto& f : summary.failed) failed.push_back(f.name);
  EXPECT_THAT(failed, ::testing::ElementsAre("models/m/shards/hash", "models/m/shards/nan"));
  EXPECT_TRUE(store_->Find("models/m/shards/good").ok());
  EXPECT_TRUE(store_->Find("models/m/shards/allowed").ok());
  for (const char* name : {"hash", "nan"}) {
    const ShardInfo info = InfoOf(std::string("models/m/shards/") + name);
    EXPECT_EQ(info.state, ShardState::kFailed) << name;
    EXPECT_FALSE(info.error.ok()) << name;
  }
  EXPECT_EQ(InfoOf("models/m/shards/nan").family, Family::kAttnO);
  EXPECT_TRUE(absl::IsDataLoss(InfoOf("models/m/shards/hash").error));
  ASSERT_EQ(progress_.size(), 4u);
  EXPECT_EQ(progress_.back().done, 4);
  EXPECT_EQ(progress_.back().total, 4);
  EXPECT_EQ(progress_.back().name, "models/m/shards/good");
}

TEST_F(ShardLoaderTest, ACheckpointsSkippedTensorsAreReported) {
  const std::string data(2 * 8 * 64, '\x3f');
  const std::string path = dir_.Write(
      "model.safetensors", test::SafetensorsBuilder()
                               .Add("lm_head.weight", "BF16", {8, 64}, data)
                               .Add("model.norm.weight", "BF16", {64}, std::string(128, '\x3f'))
                               .Build());
  LoadPlan plan = Plan({{.model = "m", .source = CheckpointPath{path}}});
  ASSERT_EQ(plan.skips.size(), 1u);
  EXPECT_EQ(plan.skips[0].model, "m");
  ASSERT_EQ(plan.skips[0].tensors.size(), 1u);
  EXPECT_EQ(plan.skips[0].tensors[0].tensor, "model.norm.weight");
  EXPECT_EQ(plan.skips[0].tensors[0].reason, "norm");
  EXPECT_EQ(LoadAll(std::move(plan)).loaded, 1);
}

TEST_F(ShardLoaderTest, StopEndsALoadInTheMiddle) {
  const auto stop_after_first = [this](const LoadProgress&) { stop_ = true; };
  const LoadSummary summary = loader_->LoadAll(
      Plan({{.model = "m", .source = SyntheticName{"small"}}}), stop_after_first, stop_);
  EXPECT_TRUE(summary.stopped);
  EXPECT_EQ(summary.loaded, 1);
  EXPECT_TRUE(summary.failed.empty());
}

TEST_F(ShardLoaderTest, ASyntheticModelLoadsWhole) {
  const LoadSummary summary = LoadAll(Plan({{.model = "m", .source = SyntheticName{"small"}}}));
  for (const auto& f : summary.failed) ADD_FAILURE() << f.name << ": " << f.status;
  EXPECT_GT(summary.loaded, 0);
  EXPECT_EQ(static_cast<size_t>(summary.loaded), store_->Serving().size());
}

// Equal memories: placement by room alone would part a layer.
TEST_F(ShardLoaderTest, ShardsOfALayerShareADevice) {
  const auto device = [](const char* id) {
    return DeviceInfo{.id = id, .description = "fake", .memory_bytes = int64_t{1} << 30};
  };
  test::FakeBackend first(device("fake:0")), second(device("fake:1"));
  ShardStore store({&first, &second}, nullptr);
  ShardLoader loader(store, {});
  Config config;
  config.models = {{.model = "m", .source = SyntheticName{"small"}}};
  LoadPlan plan = OpenModels(config);
  PlaceModels({&first, &second}, plan);
  const LoadSummary summary = loader.LoadAll(std::move(plan), nullptr, stop_);
  ASSERT_TRUE(summary.failed.empty()) << summary.failed[0].status;
  std::map<std::string, std::set<const Backend*>> by_layer;
  for (const auto& shard : store.Serving()) {
    const size_t at = shard->name.find("layers.");
    if (at == std::string::npos) continue;
    by_layer[shard->name.substr(at, shard->name.find('.', at + 7) - at)].insert(shard->backend);
  }
  std::set<const Backend*> used;
  for (const auto& shard : store.Serving()) used.insert(shard->backend);
  EXPECT_EQ(used.size(), 2u);
  EXPECT_FALSE(by_layer.empty());
  for (const auto& [layer, devices] : by_layer) EXPECT_EQ(devices.size(), 1u) << layer;
}

}  // namespace
}  // namespace fulcrum::service

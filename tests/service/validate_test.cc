// What refuses to start, or fails while it loads, is refused by the check before.
// SPDX-License-Identifier: Apache-2.0
#include "service/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "kernels/backend_factory.h"
#include "tests/support/weight_files.h"

namespace fulcrum::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Config Small() {
  Config config;
  config.backend = "cpu";
  config.cpu_threads = 1;
  config.models = {{.model = "small", .source = SyntheticName{"small"}}};
  return config;
}
std::string Problems(const Config& config,
                     const std::map<std::string, std::string>& environment = {}) {
  return std::string(ValidateStart(config, environment).message());
}

TEST(Validate, WhatStartsIsValid) {
  EXPECT_EQ("", Problems(Small(), {{"FULCRUM_LEVER_AUDIT_RATE", "0.5"},
                                   {"FULCRUM_LATCHED_LEVERS", "m16_tc, audit_rate"},
                                   {"PATH", "/bin"}}));
  Config empty = Small();
  empty.models.clear();
  EXPECT_EQ("", Problems(empty));
}

TEST(Validate, EveryVariableIsChecked) {
  const std::string problems = Problems(Small(), {{"FULCRUM_LEVER_AUDIT_RATE", "9"},
                                                  {"FULCRUM_LEVER_NOPE", "1"},
                                                  {"FULCRUM_LATCHED_LEVERS", "zz"}});
  for (const char* part : {"FULCRUM_LEVER_AUDIT_RATE", "FULCRUM_LEVER_NOPE", "zz"}) {
    EXPECT_THAT(problems, HasSubstr(part));
  }
}

TEST(Validate, ModelsAndTensorsAreLookedUp) {
  Config config = Small();
  config.models = {
      {.model = "a", .source = SyntheticName{"nope"}},
      {.model = "b", .source = CheckpointPath{"/nope"}},
      {.model = "c",
       .source = std::vector<ExplicitShardConfig>{{.name = "s",
                                                   .path = FULCRUM_TEST_DATA "/q2_0/mainline.gguf",
                                                   .tensor = "no.such.tensor",
                                                   .device = {},
                                                   .expect_hash = {}}}}};
  const std::string problems = Problems(config);
  for (const char* part : {"models/a: ", "models/b: ", "models/c/shards/s: ", "no.such.tensor"}) {
    EXPECT_THAT(problems, HasSubstr(part));
  }
}

TEST(Validate, AJournalIsReadAndLeftAlone) {
  const test::TempDir folder;
  Config config = Small();
  config.lever_journal = folder.At("levers.journal");
  EXPECT_EQ("", Problems(config));  // made by the start
  EXPECT_FALSE(std::filesystem::exists(config.lever_journal));
  std::ofstream(config.lever_journal) << "no record\n";
  EXPECT_THAT(Problems(config), HasSubstr(config.lever_journal + ": line 1 (byte 0) is damaged"));
}

TEST(Validate, TheBudgetMustHoldTheShards) {
  Config config = Small();
  config.memory_budget_bytes = 1 << 20;
  EXPECT_THAT(Problems(config),
              AllOf(HasSubstr("memory_budget_bytes"), HasSubstr("the budget is 1048576"),
                    HasSubstr("is the first without room")));
  // Of all models together.
  config.memory_budget_bytes = 7 << 20;
  EXPECT_EQ("", Problems(config));
  config.models.push_back({.model = "more", .source = SyntheticName{"small"}});
  EXPECT_THAT(Problems(config), HasSubstr("models/more/shards/"));
}

// What a start finds before it listens, said with the place that has to be changed.
TEST(Validate, AModelThatCannotBeServedIsNamedWithItsPlace) {
  const test::TempDir folder;
  std::filesystem::create_directory(folder.At("empty"));
  folder.Write("no_checkpoint", "these are not weights, whatever the name says");
  folder.Write("norms.safetensors",
               test::SafetensorsBuilder().Add("model.norm.weight", "BF16", {2}, "1234").Build());
  folder.Write("scale.safetensors", test::SafetensorsBuilder()
                                        .Add("a.weight", "F8_E4M3", {1, 1}, "1")
                                        .Add("a.weight_scale_inv", "F32", {1, 1},
                                             test::ArrayBytes(std::vector<float>{-1e38f}))
                                        .Build());
  std::filesystem::create_symlink(folder.At("gone"), folder.At("dangling"));
  for (const auto& [path, says] :
       std::map<std::string, std::string>{{"absent", "No such file"},
                                          {"empty", "0 safetensors"},
                                          {"no_checkpoint", "header length"},
                                          {"norms.safetensors", "1 skipped: 1 norm"},
                                          {"scale.safetensors", "block [0, 0]"},
                                          {"dangling", "No such file"}}) {
    Config config = Small();
    config.models = {{.model = "m", .source = CheckpointPath{folder.At(path)}}};
    config.places["models"] = "--model";
    EXPECT_THAT(Problems(config), AllOf(::testing::StartsWith("--model: models/m: "),
                                        HasSubstr(folder.At(path)), HasSubstr(says)));
  }
  Config config = Small();
  config.models = {
      {.model = "m",
       .source = std::vector<ExplicitShardConfig>{{.name = "s",
                                                   .path = folder.At("scale.safetensors"),
                                                   .tensor = "a.weight",
                                                   .device = "cpu:3",
                                                   .expect_hash = {},
                                                   .allow_nan = true}}}};
  config.places["models[0].shards.shard[0]"] = "node.txtpb:7:3";
  EXPECT_THAT(Problems(config), AllOf(HasSubstr("node.txtpb:7:3: models/m/shards/s: "),
                                      HasSubstr("'cpu:3'"), HasSubstr("cpu:0")));
}

// In a process of its own, which is not root: root may read everything.
TEST(ValidateDeathTest, FilesAndFoldersThatMayNotBeReadAreProblems) {
  constexpr uid_t kNobody = 65534;
  const test::TempDir folder;  // its owner alone may enter it
  const std::string secret = folder.Write("w.safetensors", test::Safetensors("{}", ""));
  std::filesystem::permissions(secret, std::filesystem::perms::none);
  std::filesystem::create_directory(folder.At("root"));
  std::filesystem::permissions(folder.At("root"), std::filesystem::perms::none);
  Config model = Small(), root = Small();
  model.models = {{.model = "m", .source = CheckpointPath{secret}}};
  root.weight_roots = {folder.At("root")};
  const auto problems_without_rights = [](const Config& config) {
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) std::exit(1);
    std::fputs(Problems(config).c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(problems_without_rights(model), ::testing::ExitedWithCode(0),
              "models/m: .*w.safetensors.*Permission denied");
  EXPECT_EXIT(problems_without_rights(root), ::testing::ExitedWithCode(0),
              "weight_roots.*Permission denied");
}

TEST(Validate, ABackendThatIsNotThereIsAProblem) {
  Config config = Small();
  config.backend = "cuda";
  if (MakeBackends("cuda", {}).ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(Problems(config), HasSubstr("backend: "));
}

}  // namespace
}  // namespace fulcrum::service

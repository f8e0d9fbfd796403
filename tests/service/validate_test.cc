// What refuses to start, or fails while it loads, is refused by the check before.
// SPDX-License-Identifier: Apache-2.0
#include "service/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "kernels/backend_factory.h"
#include "tests/support/weight_files.h"

namespace fulcrum::service {
namespace {

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
  EXPECT_THAT(Problems(config), HasSubstr("memory_budget_bytes"));
}

TEST(Validate, ABackendThatIsNotThereIsAProblem) {
  Config config = Small();
  config.backend = "cuda";
  if (MakeBackends("cuda", {}).ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(Problems(config), HasSubstr("backend: "));
}

}  // namespace
}  // namespace fulcrum::service

// What of a configuration reaches the backends before they are made.
// SPDX-License-Identifier: Apache-2.0
#include "service/backend_options.h"

#include <gtest/gtest.h>

namespace fulcrum::service {
namespace {

TEST(BackendOptionsOf, KeepsRowsForW8A8WhereAnySourceOpensItForAFamily) {
  Config config;
  config.cpu_threads = 3;
  config.memory_budget_bytes = 1 << 20;
  const BackendOptions plain = BackendOptionsOf(config, {});
  EXPECT_EQ(plain.cpu_threads, 3);
  EXPECT_EQ(plain.memory_budget_bytes, 1 << 20);
  EXPECT_FALSE(plain.w8a8);
  EXPECT_FALSE(BackendOptionsOf(config, {{"FULCRUM_LEVER_M16_TC", "all"}}).w8a8);
  EXPECT_TRUE(BackendOptionsOf(config, {{"FULCRUM_LEVER_W8A8_PREFILL", "ffn_down"}}).w8a8);
  config.levers["w8a8_prefill"] = "lm_head";
  EXPECT_TRUE(BackendOptionsOf(config, {}).w8a8);
  EXPECT_FALSE(BackendOptionsOf(config, {{"FULCRUM_LEVER_W8A8_PREFILL", "off"}}).w8a8);
}

TEST(BackendOptionsOf, OpensTheLibraryOnlyWhereItIsTheChoiceForAFamily) {
  const auto of = [](const char* value) {
    return BackendOptionsOf({}, {{"FULCRUM_LEVER_W8A8_PREFILL", value}});
  };
  EXPECT_FALSE(of("off").w8a8_library);
  EXPECT_FALSE(of("all").w8a8_library);
  EXPECT_TRUE(of("ffn_down:library").w8a8_library);
  EXPECT_TRUE(of("ffn_down:library").w8a8);
  EXPECT_TRUE(of("all,lm_head:library").w8a8_library);
}

}  // namespace
}  // namespace fulcrum::service

// The grammar of resource names.
// SPDX-License-Identifier: Apache-2.0
#include "service/shard_name.h"

#include <gtest/gtest.h>

#include "kernels/weights/name_part.h"

namespace fulcrum::service {
namespace {

TEST(ShardName, LegalNames) {
  for (const std::string& name :
       {std::string("models/qwen-27b/shards/layers.3.ffn_gate"), std::string("models/a/shards/B"),
        ShardName(std::string(kMaxModelName, 'm'), std::string(kMaxShardLeaf, 'S'))}) {
    EXPECT_TRUE(CheckShardName(name).ok()) << name;
  }
  EXPECT_TRUE(CheckShardParent("models/qwen-27b").ok());
  EXPECT_EQ(ShardName("m", "s"), "models/m/shards/s");
}

TEST(ShardName, RefusedNamesSayWhy) {
  const std::string long_model(kMaxModelName + 1, 'm'), long_leaf(kMaxShardLeaf + 1, 's');
  for (const std::string& name :
       {std::string(), std::string("models"), std::string("models/a"), std::string("a/b/c/d"),
        std::string("models/a/shards/"), std::string("models//shards/s"),
        std::string("models/A/shards/s"), std::string("models/a/shards/s/t"),
        std::string("/models/a/shards/s"), std::string("models/a/shards/.."),
        std::string("models/./shards/s"), std::string("models/a/shards/s t"),
        std::string("models/a/shards/s\n"), std::string("models/a/shards/\xc3\xa9"),
        std::string("models/a/shards/s\0t", 19), std::string("models/a/tensors/s"),
        ShardName(long_model, "s"), ShardName("m", long_leaf)}) {
    const absl::Status status = CheckShardName(name);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_NE(status.message().find("expected"), absl::string_view::npos) << status;
    for (char c : std::string(status.message())) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << status;
    EXPECT_LT(status.message().size(), 300u);
  }
  EXPECT_FALSE(CheckShardParent("models/a/").ok());
  EXPECT_FALSE(CheckShardParent("models").ok());
}

}  // namespace
}  // namespace fulcrum::service

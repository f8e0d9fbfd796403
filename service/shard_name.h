// The resource names of shards: "models/{model}/shards/{shard}". The grammar is here alone; whether
// a shard of that name is held is scheduler/shard_store.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace fulcrum::service {

// {model}: 1..64 of [a-z0-9._-]; {shard}: 1..128 of [A-Za-z0-9._-]; neither is "." or "..".
inline constexpr size_t kMaxModelName = 64;
inline constexpr size_t kMaxShardLeaf = 128;

// INVALID_ARGUMENT says which part is wrong and what is allowed.
absl::Status CheckModelName(std::string_view model);
absl::Status CheckShardLeaf(std::string_view shard);
absl::Status CheckShardName(std::string_view name);    // models/{model}/shards/{shard}
absl::Status CheckShardParent(std::string_view name);  // models/{model}

// Parts that passed the checks above.
std::string ShardName(std::string_view model, std::string_view shard);

}  // namespace fulcrum::service

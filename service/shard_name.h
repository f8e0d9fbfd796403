// The resource names of shards: "models/{model}/shards/{shard}", put together and taken apart. The
// grammar of the parts is kernels/weights/name_part.h's; whether a shard of that name is held is
// scheduler/shard_store.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace fulcrum::service {

// INVALID_ARGUMENT says which part is wrong and what is allowed.
absl::Status CheckShardName(std::string_view name);    // models/{model}/shards/{shard}
absl::Status CheckShardParent(std::string_view name);  // models/{model}

// Parts that passed the checks above.
std::string ShardName(std::string_view model, std::string_view shard);

}  // namespace fulcrum::service

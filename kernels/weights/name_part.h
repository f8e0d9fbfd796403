// The grammar of one part of a resource name, models/{model}/shards/{shard}. It stands below
// everything that makes or takes such names: import, which makes shard names of tensor names, and
// the service, which reads them from callers and configurations (service/shard_name.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"

namespace fulcrum {

// {model}: 1..64 of [a-z0-9._-]; {shard}: 1..128 of [A-Za-z0-9._-]; neither is "." or "..".
inline constexpr size_t kMaxModelName = 64;
inline constexpr size_t kMaxShardLeaf = 128;

// INVALID_ARGUMENT says what is wrong and what is allowed.
absl::Status CheckModelName(std::string_view model);
absl::Status CheckShardLeaf(std::string_view shard);

}  // namespace fulcrum

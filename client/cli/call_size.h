// Whether a call fits the node, asked before its payload is made: the node's own answer would come
// after gigabytes were allocated, and above the transport's bound it would not come at all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "fulcrum/v1/shard_service.pb.h"

namespace fulcrum::cli {

// INVALID_ARGUMENT: which limit of the node, and what to do. A limit of 0 is one that the node does
// not tell, and is left to it.
absl::Status CheckCallSize(const v1::Limits& limits, v1::Step step, int64_t rows, int64_t k,
                           int64_t element_bytes);

}  // namespace fulcrum::cli

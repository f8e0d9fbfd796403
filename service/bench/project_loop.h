// Closed loops of Project calls against any server of the interface: the node or the echo.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "fulcrum/v1/projection_service.pb.h"
#include "service/bench/closed_loop.h"

namespace fulcrum::service {

struct Target {
  std::string address;
  int64_t reply_bytes = 0;  // of the one output; another size is an error
};

// A decode call of `rows` rows of `k` small BF16 values to `shard`.
v1::ProjectRequest MakeRequest(const std::string& shard, int64_t rows, int64_t k);

// Latencies without the time the reply says its kernel took. One connection.
LoopResult RunProjectLoop(const Target& target, const v1::ProjectRequest& request,
                          const LoopOptions& options);

}  // namespace fulcrum::service

// A node without a wire as the place of a decode step: backend, shards, levers and scheduler in
// this process. Beside a running node it shows what gRPC costs; alone it needs no node.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/step_node.h"

namespace fulcrum::cli {

struct LocalNodeOptions {
  std::string model;  // of kernels/weights/synthetic.h
  std::string backend = "auto";
  int threads = 0;  // CPU threads; 0: all
  // Told what the node is about to load. May be empty.
  std::function<void(const std::string&)> progress = {};
};

// The first device of the backend holds the weights. They are made when Prepare asks for them, so a
// step of few layers needs little memory. No audit and no shadow check runs.
absl::StatusOr<std::unique_ptr<StepNode>> MakeLocalStepNode(const LocalNodeOptions& options);

}  // namespace fulcrum::cli

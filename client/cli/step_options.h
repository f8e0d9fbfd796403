// What `step` and `ab` share on the command line: the workload, and the node it runs on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/json.h"
#include "client/cli/step_node.h"

namespace fulcrum::cli {

class StepOptions {
 public:
  void Declare(Options& options);
  absl::Status Check() const;

  struct Ready {
    std::unique_ptr<StepNode> node;  // has prepared the plan's calls
    DecodeStepPlan plan;
  };
  // INVALID_ARGUMENT for a workload that cannot be; else what the node said.
  absl::StatusOr<Ready> Open(const Context& context) const;

  int rows() const { return rows_; }
  // "16 rows, 64 layers, 257 calls a step, ..."
  std::string Describe(const Ready& ready) const;
  Json ToJson(const Ready& ready) const;

 private:
  std::string model_ = "qwen-27b", backend_ = "auto", policy_ = "batch_invariant";
  int rows_ = 16, layers_ = 0, threads_ = 0;
  uint64_t seed_ = 1;
  bool no_lm_head_ = false, in_process_ = false;
};

}  // namespace fulcrum::cli

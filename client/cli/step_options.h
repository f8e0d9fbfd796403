// What `step` and `ab` share on the command line: the workload, and the node it runs on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/json.h"
#include "client/cli/step_node.h"

namespace fulcrum::cli {

class StepOptions {
 public:
  // An empty policy is the command's to set before Open.
  explicit StepOptions(std::string policy = "batch_invariant") : policy_(std::move(policy)) {}
  void Declare(Options& options, const std::string& policy_help = "Of every call");
  absl::Status Check() const;

  struct Ready {
    std::unique_ptr<StepNode> node;  // has prepared the plan's calls
    DecodeStepPlan plan;
  };
  // INVALID_ARGUMENT for a workload that cannot be; else what the node said.
  absl::StatusOr<Ready> Open(const Context& context) const;

  int rows() const { return rows_; }
  bool in_process() const { return in_process_; }
  const std::string& policy() const { return policy_; }
  void set_policy(std::string policy) { policy_ = std::move(policy); }
  // "16 rows, 64 layers, 257 calls a step, ..."
  std::string Describe(const Ready& ready) const;
  Json ToJson(const Ready& ready) const;

 private:
  std::string model_ = "qwen-27b", backend_ = "auto", policy_;
  int rows_ = 16, layers_ = 0, threads_ = 0;
  uint64_t seed_ = 1;
  bool no_lm_head_ = false, in_process_ = false;
};

}  // namespace fulcrum::cli

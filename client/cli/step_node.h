// Where a decode step runs: a node behind gRPC or one in this process. Both answer the same calls
// and turn the same levers, so that what is measured over them differs by the way there alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/types.h"
#include "kernels/weights/decode_step.h"

namespace fulcrum::cli {

using LeverValues = std::map<std::string, std::string>;  // by name

struct StepInputs {
  int rows = 16;
  Policy policy = Policy::kBatchInvariant;
  uint64_t seed = 1;  // of the activations
};

// The levers of one epoch.
struct LiveLevers {
  uint64_t epoch = 0;
  LeverValues values = {};
};

// What a reply says of itself.
struct StepReply {
  uint64_t lever_epoch = 0;
  int batch_rows = 0;                  // of the launch, other callers' included
  double kernel = 0;                   // seconds
  std::vector<std::string> arms = {};  // one a weight
};

// One caller at a time.
class StepNode {
 public:
  virtual ~StepNode() = default;
  virtual std::string Description() const = 0;
  // The model's weights, whether they are loaded or not.
  virtual absl::StatusOr<std::vector<StepWeight>> Weights() = 0;
  // Makes the calls ready to be sent any number of times.
  virtual absl::Status Prepare(const std::vector<DecodeCall>& calls, const StepInputs& inputs) = 0;
  // Sends call `index` of those prepared and waits for its reply. ABORTED when a weight is another
  // than at its first reply: times of both would be taken for those of one.
  virtual absl::StatusOr<StepReply> Call(size_t index) = 0;

  virtual absl::StatusOr<LiveLevers> Levers() = 0;
  // All or nothing; returns what is live then, as the node writes it. ABORTED when another epoch
  // than `based_on_epoch` is live.
  virtual absl::StatusOr<LiveLevers> SetLevers(const LeverValues& values, uint64_t based_on_epoch,
                                               const std::string& reason) = 0;
  // No call from here on takes longer than until `deadline`: a node that is gone must not hold a
  // command that only turns levers back.
  virtual void EndBy(absl::Time deadline) = 0;
  // One a weight of the call: the arm that the live levers ask for although the device cannot run
  // it, else empty.
  virtual absl::StatusOr<std::vector<std::string>> Declined(size_t index) = 0;
};

}  // namespace fulcrum::cli

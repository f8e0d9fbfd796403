// The order of a decode step: which projections of a model run one after the other, and which share
// their activations and so go in one call. A pure function of the weights' names, families and
// sizes; what `fulcrum step` and `fulcrum ab` replay.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/types.h"

namespace fulcrum {

// A weight as a model knows it. The name has its layer in it, "layers.3.ffn_gate" with anything
// before it, and none for what is outside the stack.
struct StepWeight {
  std::string name;
  Family family = Family::kOther;
  int64_t n = 0, k = 0;
};

struct DecodeStepScope {
  int layers = 0;       // the first so many layers that the model has; 0: all
  bool lm_head = true;  // the step ends with the LM head, where the model has one
};

// One call: the weights that are multiplied with the same activations. The next call's activations
// come out of this one's outputs, so it waits for the reply.
struct DecodeCall {
  Phase phase = Phase::kOther;
  int layer = -1;
  int64_t k = 0;
  std::vector<StepWeight> weights;
};

struct DecodeStepPlan {
  std::vector<DecodeCall> calls;      // in the order of a model
  int layers = 0;                     // that have a call
  std::vector<std::string> left_out;  // of the layers asked for: weights whose place is not known
};

// Per layer: q, k, v together, o; or the state-space input, then output; then gate and up together,
// down; then, where there is one, the shared expert in the same way. At last the LM head.
DecodeStepPlan PlanDecodeStep(std::span<const StepWeight> weights, DecodeStepScope scope);

}  // namespace fulcrum

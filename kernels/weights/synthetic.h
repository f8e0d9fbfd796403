// Weights made from a 64-bit seed instead of a file: realistic bytes without storage, for
// benchmarks, tests and demonstrations. Each row is a pure function of (seed, weight name, row), so
// any range reads the same bytes whatever was read before, on any machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/named_weight.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {

// fp8: normal codes with some drawn evenly from all finite ones, subnormals and both zeros among
// them; scales differ in every block. q2_0: all four codes, a random FP16 scale a block. bf16:
// normal values. INVALID_ARGUMENT for sizes that the format cannot have.
absl::StatusOr<std::shared_ptr<const WeightSource>> SyntheticWeight(const WeightSpec& spec,
                                                                    uint64_t seed);

// A whole model by name:
//   small                  a few MB: every family, every format, ragged sizes
//   qwen-27b               the projections of a 64-layer hybrid model and its BF16 LM head
//   qwen-27b:0-3,7,lm_head chosen layers, and the LM head only when it is named
absl::StatusOr<std::vector<NamedWeight>> SyntheticModel(std::string_view model, uint64_t seed);

}  // namespace fulcrum

// One tensor-core step as the sm_90 card computes it: the model of tensor_core_model.h with the
// constant that was fitted to the card's own outputs.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/tensor_core.h"

#include "kernels/numerics/tensor_core_model.h"

namespace fulcrum::numerics {

uint32_t TensorCoreStep(const uint16_t* a, const uint16_t* b, uint32_t c) {
  return tensor_core_model::Step(a, b, c, tensor_core_model::kFractionBits);
}

}  // namespace fulcrum::numerics

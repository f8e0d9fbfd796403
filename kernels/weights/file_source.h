// Weights of a checkpoint file behind the WeightSource interface: an fp8 tensor with its scale
// grid, a plain bf16 tensor, or a q2_0 tensor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/weights/tensor_info.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {

// A 2-D BF16 or Q2_0 tensor. INVALID_ARGUMENT for any other, with the reason.
absl::StatusOr<std::shared_ptr<const WeightSource>> OpenPlainWeight(const TensorInfo& weight);

// A 2-D F8_E4M3 tensor `X.weight` with `X.weight_scale_inv` (F32 or BF16, [ceil(N/128),
// ceil(K/128)]; null when the checkpoint has none). The grid is read now and widened to F32.
// Errors name tensor, expected and found.
absl::StatusOr<std::shared_ptr<const WeightSource>> OpenFp8Weight(const TensorInfo& weight,
                                                                  const TensorInfo* scale_inv);

}  // namespace fulcrum

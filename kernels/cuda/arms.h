// The CUDA ladder table and its arms' entry points, both made from arms.def.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "absl/status/status.h"
#include "kernels/cuda/host/cuda_status.h"  // what every arm ends with
#include "kernels/ladder/arm.h"

namespace fulcrum::cuda {

#define ARM(fn, ...) absl::Status fn(const ArmArgs& args);
#include "kernels/cuda/arms.def"
#undef ARM

std::span<const Arm> Arms();  // top rung first

}  // namespace fulcrum::cuda

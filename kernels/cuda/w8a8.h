// The product of class w8a8, for its arm and for who wants to see what a wrong scale does to it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/quantise.h"
#include "kernels/ladder/arm.h"

namespace fulcrum::cuda {

inline constexpr int kTokenTile = 128;  // rows of activations that are multiplied together

// What args ask for, from activations that are quantised already: args.activations is not read. x
// has args.m rows; its scale_pitch is a multiple of kTokenTile. The weight has rows(), the device
// kCapBlockScaled.
cudaError_t MultiplyCodes(const ArmArgs& args, const QuantisedRows& x);

}  // namespace fulcrum::cuda

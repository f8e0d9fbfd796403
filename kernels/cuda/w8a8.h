// The product of class w8a8, for its arm and for who wants to see what a wrong scale does to it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/quantise.h"
#include "kernels/ladder/arm.h"

namespace fulcrum::cuda {

inline constexpr int kTokenTile = 256;  // the most rows of activations in a tile

// The tiles it can be cut into: none changes a bit.
inline constexpr int kW8A8Tiles = 5, kFastestTile = -1;

// What args ask for, from activations that are quantised already: args.activations is not read. x
// has args.m rows; its scale_pitch is a multiple of kTokenTile. The weight has rows(), the device
// kCapBlockScaled. tile: one of kW8A8Tiles, or the one that should take the least time.
cudaError_t MultiplyCodes(const ArmArgs& args, const QuantisedRows& x, int tile = kFastestTile);

}  // namespace fulcrum::cuda

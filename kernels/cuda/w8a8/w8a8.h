// The product of class w8a8, for its arms and for tests that give it wrong scales.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/cuda/w8a8/quantise.h"
#include "kernels/ladder/arm.h"

namespace fulcrum::cuda {

inline constexpr int kTokenTile = 256;  // the most rows of activations in a tile

// The number of tile shapes. The choice of one cannot change a bit of the result.
inline constexpr int kW8A8Tiles = 5, kFastestTile = -1;

// Computes args' product from quantised activations; args.activations is not read. x has args.m
// rows; its scale_pitch is a multiple of kTokenTile. The weight has rows(), the device
// kCapBlockScaled. tile: an index below kW8A8Tiles, or kFastestTile for the one with the lowest
// estimated time.
cudaError_t MultiplyCodes(const ArmArgs& args, const QuantisedRows& x, int tile = kFastestTile);

// Loads the kernels of all tiles, so that their first launches do not pay for it.
cudaError_t LoadW8A8();

// Quantises the activations of args, then calls MultiplyCodes: our own kernel, whose bits depend on
// neither M nor tile.
cudaError_t QuantiseAndMultiply(const ArmArgs& args, const QuantisedRows& x);

// Calls `multiply` for pieces of args' rows whose codes and scales fit into the scratch, with their
// places there; x.scale_pitch is a multiple of kTokenTile. arm: the name for error messages.
using MultiplyPiece = absl::FunctionRef<cudaError_t(const ArmArgs& piece, const QuantisedRows& x)>;
absl::Status InPieces(const ArmArgs& args, const char* arm, MultiplyPiece multiply);

}  // namespace fulcrum::cuda

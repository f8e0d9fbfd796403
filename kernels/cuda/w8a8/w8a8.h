// The product of class w8a8, for its arms and for who wants to see what a wrong scale does to it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/cuda/w8a8/quantise.h"
#include "kernels/ladder/arm.h"

namespace fulcrum::cuda {

inline constexpr int kTokenTile = 256;  // the most rows of activations in a tile

// The tiles it can be cut into: none changes a bit.
inline constexpr int kW8A8Tiles = 5, kFastestTile = -1;

// What args ask for, from activations that are quantised already: args.activations is not read. x
// has args.m rows; its scale_pitch is a multiple of kTokenTile. The weight has rows(), the device
// kCapBlockScaled. tile: one of kW8A8Tiles, or the one that should take the least time.
cudaError_t MultiplyCodes(const ArmArgs& args, const QuantisedRows& x, int tile = kFastestTile);

// Loads the kernel of every tile, which else the first launch that chooses it does.
cudaError_t LoadW8A8();

// args quantised, then MultiplyCodes: our own kernel, whose bits depend on neither M nor tile.
cudaError_t QuantiseAndMultiply(const ArmArgs& args, const QuantisedRows& x);

// `multiply` for as many rows of args at a time as the scratch holds codes of, with where they and
// their scales go; x.scale_pitch is what fits, a multiple of kTokenTile. arm: for errors.
using MultiplyPiece = absl::FunctionRef<cudaError_t(const ArmArgs& piece, const QuantisedRows& x)>;
absl::Status InPieces(const ArmArgs& args, const char* arm, MultiplyPiece multiply);

}  // namespace fulcrum::cuda

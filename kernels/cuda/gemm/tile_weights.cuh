// The weights of a few neighbouring tiles for a warp that loads them into registers, a block ahead
// of what it multiplies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/fragment.cuh"
#include "kernels/cuda/gemm/gemm_params.cuh"

namespace fulcrum::cuda {

template <class Weights, int kTiles>
struct TileWeights {
  const std::byte* codes[kTiles];
  const float* scales;  // of the tiles' blocks
  const int lane;
  Weights next[kTiles];

  __device__ __forceinline__ TileWeights(const GemmParams& p, int first_tile, int lane_)
      : scales(Weights::kScaled ? p.scales + int64_t{first_tile * kTileRows / kScaleRows} * p.blocks
                                : nullptr),
        lane(lane_) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      // Beyond the last tile the last one is computed again and not stored.
      codes[i] = TileCodes(p, min(first_tile + i, p.tiles - 1), Weights::kBlockBytes);
    }
  }

  __device__ __forceinline__ void Load(int block) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      next[i].Load(codes[i] + int64_t{block} * kPanelTiles * Weights::kBlockBytes, lane);
    }
  }
  // The weights of the block that was loaded before; loads the next, or the last one again.
  __device__ __forceinline__ void Take(int block, int end, Weights (&weights)[kTiles]) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      weights[i] = next[i];
      const int ahead = min(block + 1, end - 1);
      next[i].Load(codes[i] + int64_t{ahead} * kPanelTiles * Weights::kBlockBytes, lane);
    }
  }
  __device__ __forceinline__ float Scale(int block) const {
    return Weights::kScaled ? __ldg(scales + block) : 1.0f;
  }
};

}  // namespace fulcrum::cuda

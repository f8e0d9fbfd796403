// What the prefill kernels of sm_90a share: persistent clusters of thread blocks, each with two
// warpgroups that multiply and one that copies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/kernel_launch.h"
#include "kernels/cuda/device/pipeline_state.cuh"
#include "kernels/cuda/launch.h"

namespace fulcrum::cuda {

inline constexpr int kTileWarps = 8;  // that multiply
inline constexpr int kTileThreads = kTileWarps * 32 + 128;

struct TilePlan {
  int column_tiles;  // of activations; neighbouring tiles read the same weights
  int tiles;         // column tiles times the groups of weight rows that clusters take
  int stages;        // of the ring
};

// The grid of `clusters` clusters of `size` thread blocks.
inline KernelGrid TileGrid(int clusters, int size, int shared_bytes) {
  return {.thread_blocks = dim3(static_cast<unsigned>(clusters * size)),
          .threads = kTileThreads,
          .shared_bytes = shared_bytes,
          .cluster = size};
}

}  // namespace fulcrum::cuda

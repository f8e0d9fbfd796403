// What the kernels of prefill share: thread blocks of two warpgroups that multiply and one that
// copies, in clusters, which stay and take tile after tile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/hopper_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ring.cuh"

namespace fulcrum::cuda {

inline constexpr int kTileWarps = 8;  // that multiply
inline constexpr int kTileThreads = kTileWarps * 32 + 128;

struct TilePlan {
  int column_tiles;  // of activations; neighbours of one launch read the same weights
  int tiles;         // column tiles times what a cluster has of weights
  int stages;        // of the ring
};

// A launch of `clusters` clusters of `size` thread blocks.
template <class... Parameters, class... Arguments>
cudaError_t LaunchClusters(void (*kernel)(Parameters...), int size, int clusters, int shared,
                           cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(clusters * size));
  config.blockDim = dim3(kTileThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace fulcrum::cuda

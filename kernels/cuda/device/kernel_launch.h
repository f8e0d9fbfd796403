// Launches a kernel with dynamic shared memory, in clusters, and programmatically where launch.h
// (CudaContext::programmatic) allows it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace fulcrum::cuda {

struct KernelGrid {
  dim3 thread_blocks;
  int threads = 0;       // of a thread block
  int shared_bytes = 0;  // dynamic, of a thread block
  int cluster = 1;       // thread blocks of a cluster
  bool programmatic = false;
};

template <class... Parameters, class... Arguments>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), const KernelGrid& grid, cudaStream_t stream,
                         const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (grid.programmatic) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.thread_blocks;
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

// Makes a kernel run with the largest shared memory carve-out although it needs none. A
// multiprocessor changes the division between shared memory and L1 only while it is idle. Without
// this call a grid that needs all shared memory could not start beside this kernel.
template <class... Parameters>
cudaError_t PreferShared(void (*kernel)(Parameters...)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

}  // namespace fulcrum::cuda

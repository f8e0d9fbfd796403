// Launching a kernel with its dynamic shared memory, programmatically where that is allowed
// (launch.h, CudaContext::programmatic; grid_dependency.cuh).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace fulcrum::cuda {

struct KernelGrid {
  dim3 thread_blocks;
  int threads = 0;       // of a thread block
  int shared_bytes = 0;  // dynamic, of a thread block
  int cluster = 1;       // thread blocks that run at once and reach each other's shared memory
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

// Has a kernel run with as much shared memory as a multiprocessor gives, though it needs none: the
// division between that and the L1 changes on an idle multiprocessor only, so that a grid which
// needs all of it could not start beside this kernel's thread blocks.
template <class... Parameters>
cudaError_t PreferShared(void (*kernel)(Parameters...)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

}  // namespace fulcrum::cuda

// See launch.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"

#include <utility>

namespace fulcrum::cuda {

absl::StatusOr<CudaContext> ContextOf(int device) {
  int major = 0, minor = 0;
  CudaContext context;
  for (const auto& [attribute, value] :
       {std::pair{cudaDevAttrComputeCapabilityMajor, &major},
        std::pair{cudaDevAttrComputeCapabilityMinor, &minor},
        std::pair{cudaDevAttrMultiProcessorCount, &context.sm_count},
        std::pair{cudaDevAttrMaxSharedMemoryPerBlockOptin, &context.max_shared_bytes}}) {
    if (absl::Status s =
            CudaStatus(cudaDeviceGetAttribute(value, attribute, device), "cudaDeviceGetAttribute");
        !s.ok()) {
      return s;
    }
  }
  context.has_wgmma = major == 9 && minor == 0;
  context.has_bulk_copies = major >= 9;
  return context;
}

}  // namespace fulcrum::cuda

// See launch.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"

#include "kernels/cuda/host/cuda_status.h"

namespace fulcrum::cuda {

absl::StatusOr<CudaContext> ContextOf(int ordinal, const DeviceInfo& device) {
  CudaContext context = {.sm_count = device.compute_units,
                         .has_wgmma = (device.caps & kCapSm90a) != 0,
                         .has_bulk_copies = (device.caps & kCapBulkCopy) != 0};
  if (absl::Status s =
          CudaStatus(cudaDeviceGetAttribute(&context.max_shared_bytes,
                                            cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal),
                     "cudaDeviceGetAttribute");
      !s.ok()) {
    return s;
  }
  return context;
}

}  // namespace fulcrum::cuda

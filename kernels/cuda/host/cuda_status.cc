// See cuda_status.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/host/cuda_status.h"

#include <string>

#include "absl/strings/str_format.h"

namespace fulcrum::cuda {

absl::Status CudaStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  // The runtime keeps the code per thread, and an arm that asks for the error of its own launch
  // would be given this one.
  cudaGetLastError();
  const std::string text =
      absl::StrFormat("%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                            : absl::InternalError(text);
}

}  // namespace fulcrum::cuda

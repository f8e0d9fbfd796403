// The one translation of the CUDA runtime's error codes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"

namespace fulcrum::cuda {

// The status of a runtime call: INTERNAL with the call and CUDA's own words, RESOURCE_EXHAUSTED
// when memory ran out.
absl::Status CudaStatus(cudaError_t error, const char* call);

}  // namespace fulcrum::cuda

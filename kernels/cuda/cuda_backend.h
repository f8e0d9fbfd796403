// The CUDA devices of this machine as backends. Which devices there are is device_query.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace fulcrum::cuda {

// One backend a device that an arm of this build can run on. NOT_FOUND when there is none: the
// message says whether the machine has no device, or its devices have no arm.
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> MakeCudaBackends(int64_t memory_budget_bytes);

}  // namespace fulcrum::cuda

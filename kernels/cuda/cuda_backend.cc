// This build holds no CUDA arms, so no device can become a backend; what is found is named, so that
// "backend cuda" is never silently something else.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_backend.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda/device_query.h"

namespace fulcrum::cuda {

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> MakeCudaBackends(int64_t) {
  const absl::StatusOr<std::vector<DeviceInfo>> devices = QueryDevices();
  if (!devices.ok()) return devices.status();
  if (devices->empty()) {
    return absl::NotFoundError(
        "backend cuda: this machine has no CUDA device, or no driver for it");
  }
  const std::string found =
      absl::StrJoin(*devices, ", ", [](std::string* out, const DeviceInfo& device) {
        absl::StrAppend(out, device.id, " ", device.description);
      });
  return absl::NotFoundError(absl::StrCat("backend cuda: found ", found,
                                          ", but this build has no CUDA arms; use backend cpu"));
}

}  // namespace fulcrum::cuda

// Queries the CUDA runtime for devices. "No driver" and "no device" are two error codes for the
// same ordinary result, an empty list.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/host/device_query.h"

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fulcrum::cuda {
namespace {

absl::Status ToStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrFormat("%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error)));
}

}  // namespace

uint32_t Capabilities(int major, int minor) {
  const int sm = major * 10 + minor;
  uint32_t caps = kCapNone;
  if (sm >= 75) caps |= kCapImma;
  if (sm >= 80) caps |= kCapMma;
  if (sm >= 90) caps |= kCapBulkCopy;
  if (sm == 90) caps |= kCapSm90a;  // "a" features exist on exactly their own architecture
  return caps;
}

absl::StatusOr<std::vector<DeviceInfo>> QueryDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // otherwise the runtime returns the code to the next caller
    return std::vector<DeviceInfo>();
  }
  if (absl::Status s = ToStatus(error, "cudaGetDeviceCount"); !s.ok()) return s;

  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (absl::Status s =
            ToStatus(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
        !s.ok()) {
      return s;
    }
    DeviceInfo device;
    device.id = absl::StrCat("cuda:", i);
    device.description =
        absl::StrFormat("%s (sm_%d%d)", properties.name, properties.major, properties.minor);
    device.caps = Capabilities(properties.major, properties.minor);
    device.compute_units = properties.multiProcessorCount;
    device.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    device.l2_bytes = properties.l2CacheSize;
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace fulcrum::cuda

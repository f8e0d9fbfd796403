// The CUDA devices of this machine as plain values. Memory, streams and launches belong to the
// backend of a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace fulcrum::cuda {

// The DeviceCap bits a compute capability implies. Block-scaled W8A8 is added by the backend, where
// it was asked for.
uint32_t Capabilities(int major, int minor);

// Devices in the driver's order, ids "cuda:0" upwards. A machine without a driver, with a driver
// too old for this build, or without a device has an empty list; any other error of the runtime is
// UNAVAILABLE with its text.
absl::StatusOr<std::vector<DeviceInfo>> QueryDevices();

}  // namespace fulcrum::cuda

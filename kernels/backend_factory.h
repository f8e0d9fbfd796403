// Builds the backends that were compiled in and have a device. The only place that knows which.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace fulcrum {

struct BackendOptions {
  int cpu_threads = 0;              // 0: one per core this process may use
  int64_t memory_budget_bytes = 0;  // per device, 0 = what the device has (node_config.proto)
  // Keeps what arms of class w8a8 need with every fp8 weight (on CUDA its bytes a second time).
  // Without it they are declined for want of the capability, whatever their lever says later.
  bool w8a8 = false;
  // With w8a8: opens the vendor's matrix library for the arms that are its own, and keeps a
  // workspace for it on each CUDA device. Where there is none, they are declined.
  bool w8a8_library = false;
  // DeviceCap bits that are left unused on CUDA: a device as if it were an older one, for tests of
  // what runs there and for tools that cannot follow the newer instructions.
  uint32_t without_caps = 0;
};

// Names of the compiled-in backends, present or not: "cpu", and "cuda" where built.
std::vector<std::string_view> CompiledBackends();

// "auto": every CUDA device, or the CPU when there is none. "cpu" or "cuda": that kind, NOT_FOUND
// when it has no device (the message says what was missing).
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> MakeBackends(std::string_view which,
                                                                   const BackendOptions& options);

}  // namespace fulcrum

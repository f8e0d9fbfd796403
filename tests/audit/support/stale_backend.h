// A backend that answers calls for one weight with another's product, as it would from a launch
// that was prepared for that one and never dropped: on CUDA the graph captured for the one is
// replayed under the other's key; the CPU has no graphs, there the pointer is stale.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include "kernels/backend.h"

namespace fulcrum::test {

// Both of one format and shape. Set before `armed` is.
struct StalePlan {
  const ResidentWeight* of = nullptr;      // whose launches are stale
  const ResidentWeight* before = nullptr;  // what they were prepared for
  std::atomic<bool> armed{false};
  std::atomic<int64_t> launches{0};  // that were stale
};

std::unique_ptr<Backend> MakeStaleBackend(std::unique_ptr<Backend> real,
                                          std::shared_ptr<StalePlan> plan);

}  // namespace fulcrum::test

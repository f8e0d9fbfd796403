// See backend_options.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/backend_options.h"

#include <algorithm>

#include "kernels/ladder/levers.h"
#include "service/lever_sources.h"

namespace fulcrum::service {

BackendOptions BackendOptionsOf(const Config& config,
                                const std::map<std::string, std::string>& environment) {
  // Only this kind of device has such arms. Levers that do not parse are reported when they are
  // built for good.
  const auto levers = BuildLevers(config, "cuda", environment);
  const bool w8a8 = levers.ok() && std::ranges::any_of(kAllFamilies, [&](Family family) {
                      return levers->levers.choice(Lever::kW8A8Prefill, family) == kW8A8PrefillOn;
                    });
  return {.cpu_threads = config.cpu_threads,
          .memory_budget_bytes = config.memory_budget_bytes,
          .w8a8 = w8a8};
}

}  // namespace fulcrum::service

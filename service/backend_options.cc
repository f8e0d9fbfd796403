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
  const auto opens = [&](auto wanted) {
    return levers.ok() && std::ranges::any_of(kAllFamilies, [&](Family family) {
             return wanted(levers->levers.choice(Lever::kW8A8Prefill, family));
           });
  };
  return {.cpu_threads = config.cpu_threads,
          .memory_budget_bytes = config.memory_budget_bytes,
          .w8a8 = opens([](int choice) { return choice != 0; }),
          .w8a8_library = opens([](int choice) { return choice == kW8A8PrefillLibrary; })};
}

}  // namespace fulcrum::service

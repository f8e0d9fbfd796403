// Everything about a start that can be known without loading weights: the configuration itself,
// lever variables, the backend, and that every model and tensor it names is there, can be served
// and has room (load_plan.h). What `fulcrumd --validate-config` answers with; a start finds the
// same before it listens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "service/config.h"

namespace fulcrum::service {

// INVALID_ARGUMENT lists every problem, one a line. Headers of weight files are read, weights not.
absl::Status ValidateStart(const Config& config,
                           const std::map<std::string, std::string>& environment);

}  // namespace fulcrum::service

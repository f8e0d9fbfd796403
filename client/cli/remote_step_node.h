// A running node as the place of a decode step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/cli/step_node.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {

// `model`: of resource names, "models/{model}/shards/...".
std::unique_ptr<StepNode> MakeRemoteStepNode(std::unique_ptr<client::Client> client,
                                             std::string target, std::string model,
                                             absl::Duration timeout);

}  // namespace fulcrum::cli

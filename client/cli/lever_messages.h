// Lever values and canaries as the wire has them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "client/cli/step_node.h"
#include "fulcrum/v1/lever_service.pb.h"

namespace fulcrum::cli {

// Request: SetLeversRequest or StartCanaryRequest.
template <class Request>
void AddAssignments(const LeverValues& values, Request* request) {
  for (const auto& [name, value] : values) {
    v1::LeverAssignment* const assignment = request->add_assignments();
    assignment->set_name(name);
    assignment->set_value(value);
  }
}

// Whether it still has a side of its own: it runs or holds.
inline bool Lives(const v1::Canary& canary) {
  return canary.state() == v1::CANARY_STATE_RUNNING || canary.state() == v1::CANARY_STATE_HOLDING;
}

}  // namespace fulcrum::cli

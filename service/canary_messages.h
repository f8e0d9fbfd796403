// Canaries on the wire and the scheduler's own, one to the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "fulcrum/v1/lever_service.pb.h"
#include "scheduler/canary.h"
#include "scheduler/lever_event.h"

namespace fulcrum::service {

std::string CanaryName(uint64_t id);  // "canaries/12"
// INVALID_ARGUMENT for what is no canary's name.
absl::StatusOr<uint64_t> ParseCanaryName(const std::string& name);

// With every default filled in. INVALID_ARGUMENT names the field. Levers and values are left to the
// store.
absl::StatusOr<CanarySpec> SpecOf(const v1::StartCanaryRequest& request, std::string actor);
v1::Canary MessageOf(const CanaryReport& report);
v1::UnitTraffic MessageOf(const CanaryTraffic& traffic);
v1::LeverEvent MessageOf(const LeverEvent& event);

}  // namespace fulcrum::service

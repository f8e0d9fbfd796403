// What a backend must know before it exists: where a lever needs memory of every weight, the lever
// decides at start whether that memory is kept.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "kernels/backend_factory.h"
#include "service/config.h"

namespace fulcrum::service {

// Of a checked configuration. w8a8 is on when w8a8_prefill is open for some family at start, from
// whatever source, and w8a8_library when its choice there is library; opened later by RPC it finds
// its arms declined.
BackendOptions BackendOptionsOf(const Config& config,
                                const std::map<std::string, std::string>& environment);

}  // namespace fulcrum::service

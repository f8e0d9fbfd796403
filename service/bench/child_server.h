// Servers of a benchmark as processes of their own: client and server of one process would share
// gRPC's pollers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fulcrum::service {

// Starts this program again as "--serve=NAME ARGUMENTS"; the address it prints, or empty when it
// did not start.
std::string SpawnServer(std::string_view name, std::string_view arguments = {});

// What such a child does first: it ends with its parent.
void EndWithParent();
// Prints the address and serves until killed.
[[noreturn]] void ServeForever(const std::string& address);

}  // namespace fulcrum::service

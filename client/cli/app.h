// The `fulcrum` command as a function, so that tests can run it in their own process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace fulcrum::cli {

// `arguments` without the program's name. Returns the exit status.
int RunApp(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace fulcrum::cli

// Runs the `fulcrum` command in this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/app.h"

namespace fulcrum::cli {

struct AppRun {
  int exit = -1;
  std::string out;
  std::string err;
  nlohmann::json Json() const { return nlohmann::json::parse(out, nullptr, false); }
};

inline AppRun RunFulcrum(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  AppRun run;
  run.exit = RunApp(arguments, out, err);
  run.out = out.str();
  run.err = err.str();
  return run;
}

}  // namespace fulcrum::cli

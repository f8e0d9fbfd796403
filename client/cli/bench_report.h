// A benchmark's result as JSON (the field names are a contract with scripts) and as text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "client/cli/bench_load.h"
#include "client/cli/bench_options.h"
#include "client/cli/json.h"
#include "client/cli/machine.h"

namespace fulcrum::cli {

struct BenchReport {
  BenchOptions options;
  std::string target;
  BenchResult result;
  Machine machine;
  std::string oracle;           // what the oracle checked, or why it could not
  int64_t oracle_elements = 0;  // recomputed
};

Json ToJson(const BenchReport& report);
void PrintText(std::ostream& out, const BenchReport& report);

}  // namespace fulcrum::cli

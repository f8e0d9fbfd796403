// What a benchmark's reader needs to know about the machine that ran the client.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace fulcrum::cli {

struct Machine {
  std::string cpu;  // model name, empty where unknown
  int cpus = 0;     // this process may run on
  std::string kernel;
  std::string load;  // one-minute load average at the start: other work shows here
};
Machine DescribeMachine();

// Page faults and CPU seconds of this process so far.
struct Usage {
  int64_t faults = 0;
  double cpu_seconds = 0;
};
Usage ReadUsage();

}  // namespace fulcrum::cli

// Facts from the system: Linux's /proc, uname and getrusage.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <fstream>

namespace fulcrum::cli {

Machine DescribeMachine() {
  Machine machine;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      machine.cpu = line.substr(line.find(": ") + 2);
      break;
    }
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) machine.cpus = CPU_COUNT(&set);
  utsname name{};
  if (uname(&name) == 0) machine.kernel = std::string(name.sysname) + " " + name.release;
  std::ifstream("/proc/loadavg") >> machine.load;
  return machine;
}

Usage ReadUsage() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return {.faults = usage.ru_minflt + usage.ru_majflt,
          .cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

}  // namespace fulcrum::cli

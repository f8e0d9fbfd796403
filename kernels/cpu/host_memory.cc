// See host_memory.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fulcrum::cpu {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// "max" and numbers that no machine has say that there is no limit.
int64_t LimitIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  int64_t bytes = 0;
  return file >> word && absl::SimpleAtoi(word, &bytes) && bytes > 0 ? bytes : kNone;
}

// Of a group and of those above it: a limit holds for everything below.
int64_t LeastLimit(const std::string& root, std::string group, const char* file) {
  int64_t least = kNone;
  while (true) {
    while (absl::EndsWith(group, "/")) group.pop_back();
    least = std::min(least, LimitIn(absl::StrCat(root, group, "/", file)));
    if (group.empty()) return least;
    const size_t slash = group.rfind('/');
    group.resize(slash == group.npos ? 0 : slash);
  }
}

}  // namespace

int64_t CgroupMemoryLimit(std::string_view membership, const std::string& root) {
  int64_t least = kNone;
  const std::vector<std::string> lines =
      absl::StrSplit(absl::string_view(membership.data(), membership.size()), '\n');
  for (const std::string& line : lines) {
    // hierarchy:controllers:group; version 2 has the hierarchy 0 and no controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[0] == "0" && parts[1].empty()) {
      least = std::min(least, LeastLimit(root, parts[2], "memory.max"));
      continue;
    }
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "memory") == controllers.end()) continue;
    least = std::min(
        least, LeastLimit(absl::StrCat(root, "/", parts[1]), parts[2], "memory.limit_in_bytes"));
  }
  return least;
}

int64_t BudgetOf(int64_t memory_bytes) {
  constexpr int64_t kMostReserve = int64_t{1} << 30;
  return std::max<int64_t>(1, memory_bytes - std::min(memory_bytes / 8, kMostReserve));
}

int64_t HostMemoryBudget() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  const int64_t machine = pages > 0 && page > 0 ? pages * page : kNone;
  std::ifstream membership("/proc/self/cgroup");
  const std::string text((std::istreambuf_iterator<char>(membership)), {});
  return BudgetOf(std::min(machine, CgroupMemoryLimit(text, "/sys/fs/cgroup")));
}

}  // namespace fulcrum::cpu

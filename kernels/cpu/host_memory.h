// How much memory this process may use: the machine's, or less where a control group says so.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fulcrum::cpu {

// The least memory limit of the control groups that `membership` (the text of /proc/self/cgroup)
// names and of those above them, version 1 or 2, as files under `root` ("/sys/fs/cgroup") say it;
// INT64_MAX where none does. Groups that are not visible from a container are passed over.
int64_t CgroupMemoryLimit(std::string_view membership, const std::string& root);

// The budget for resident weights of a node that has none configured: the machine's memory or the
// control groups' limit, whichever is less, without a reserve for the node itself (an eighth, at
// most 1 GiB). At least 1, since 0 would say "not limited".
int64_t HostMemoryBudget();
int64_t BudgetOf(int64_t memory_bytes);  // that of a machine or group of this size

}  // namespace fulcrum::cpu

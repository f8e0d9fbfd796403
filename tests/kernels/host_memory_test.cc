// The CPU's memory budget: control groups of both versions, and what is kept back.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>

#include "kernels/backend_factory.h"
#include "tests/support/weight_files.h"

namespace fulcrum::cpu {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

TEST(CgroupMemoryLimit, IsTheLeastOfTheGroupsAbove) {
  const test::TempDir root;
  root.Write("memory.max", "max\n");
  root.Write("a/memory.max", "4096000\n");
  root.Write("a/b/memory.max", "max\n");
  root.Write("a/b/c/memory.max", "9999999\n");
  EXPECT_EQ(CgroupMemoryLimit("0::/a/b/c\n", root.path()), 4096000);
  EXPECT_EQ(CgroupMemoryLimit("0::/a\n", root.path()), 4096000);
  EXPECT_EQ(CgroupMemoryLimit("0::/\n", root.path()), kNone);
  EXPECT_EQ(CgroupMemoryLimit("0::/elsewhere/than/visible\n", root.path()), kNone);
  root.Write("memory.max", "100\n");  // a container sees its own group as the root
  EXPECT_EQ(CgroupMemoryLimit("0::/docker/0123\n", root.path()), 100);
  EXPECT_EQ(CgroupMemoryLimit("0::/../x\n", root.path()), 100);
}

TEST(CgroupMemoryLimit, OfVersion1) {
  const test::TempDir root;
  root.Write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("memory/x/memory.limit_in_bytes", "5000\n");
  root.Write("cpu/x/memory.limit_in_bytes", "1\n");  // another controller's folder
  const std::string membership = "9:name=systemd:/\n4:memory:/x/y\n3:cpu:/x\n0::/\n";
  EXPECT_EQ(CgroupMemoryLimit(membership, root.path()), 5000);
  EXPECT_EQ(CgroupMemoryLimit("4:memory:/\n", root.path()), 9223372036854771712);
}

TEST(CgroupMemoryLimit, NonsenseIsNoLimit) {
  const test::TempDir root;
  root.Write("memory.max", "0\n");
  for (const char* text : {"", "\n", "0::", "nonsense", "0::x", "a:b", "::::"}) {
    EXPECT_EQ(CgroupMemoryLimit(text, root.path()), kNone) << text;
  }
}

TEST(HostMemoryBudget, KeepsAnEighthBackButAtMostOneGiB) {
  EXPECT_EQ(BudgetOf(800), 700);
  EXPECT_EQ(BudgetOf(int64_t{100} << 30), int64_t{99} << 30);
  EXPECT_EQ(BudgetOf(0), 1);
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  EXPECT_GT(HostMemoryBudget(), 1);
  EXPECT_LE(HostMemoryBudget(), BudgetOf(machine));
}

TEST(HostMemoryBudget, IsThatOfABackendThatHasNoneConfigured) {
  const auto automatic = MakeBackends("cpu", {.cpu_threads = 1});
  const auto configured = MakeBackends("cpu", {.cpu_threads = 1, .memory_budget_bytes = 12345});
  ASSERT_TRUE(automatic.ok() && configured.ok());
  EXPECT_EQ(automatic->front()->device().memory_bytes, HostMemoryBudget());
  EXPECT_EQ(configured->front()->device().memory_bytes, 12345);
}

}  // namespace
}  // namespace fulcrum::cpu

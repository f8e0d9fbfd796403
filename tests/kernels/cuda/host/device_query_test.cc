// The CUDA runtime is compiled, linked and callable on any machine; what it finds depends on the
// machine, so the list is checked for consistency and the capability rule for its values.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/host/device_query.h"

#include <gtest/gtest.h>

#include <set>

namespace fulcrum::cuda {
namespace {

TEST(Capabilities, FollowTheArchitecture) {
  EXPECT_EQ(Capabilities(7, 0), static_cast<uint32_t>(kCapNone));
  EXPECT_EQ(Capabilities(7, 5), static_cast<uint32_t>(kCapImma));
  EXPECT_EQ(Capabilities(8, 0), kCapImma | kCapMma);
  EXPECT_EQ(Capabilities(8, 9), kCapImma | kCapMma);
  EXPECT_EQ(Capabilities(9, 0), kCapImma | kCapMma | kCapSm90a | kCapBulkCopy);
  EXPECT_EQ(Capabilities(10, 0), kCapImma | kCapMma | kCapBulkCopy);
  EXPECT_EQ(Capabilities(12, 0), kCapImma | kCapMma | kCapBulkCopy);
}

TEST(QueryDevices, AMachineWithoutADeviceHasAnEmptyListNotAnError) {
  const auto devices = QueryDevices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  std::set<std::string> ids;
  for (const DeviceInfo& device : *devices) {
    EXPECT_TRUE(ids.insert(device.id).second) << device.id << " is listed twice";
    EXPECT_EQ(device.id.rfind("cuda:", 0), 0u) << device.id;
    EXPECT_FALSE(device.description.empty());
    EXPECT_GT(device.compute_units, 0);
    EXPECT_GT(device.memory_bytes, 0);
    EXPECT_GT(device.l2_bytes, 0);
  }
}

TEST(QueryDevices, AskingTwiceGivesTheSameAnswer) {
  const auto first = QueryDevices();
  const auto second = QueryDevices();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->size(), second->size());
}

}  // namespace
}  // namespace fulcrum::cuda

// Asking for CUDA backends never pretends: it is told what the machine lacks.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/backend_factory.h"
#include "kernels/cuda/device_query.h"

namespace fulcrum::cuda {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(MakeCudaBackends, SaysWhatIsMissing) {
  const auto devices = QueryDevices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  const auto backends = MakeCudaBackends(0);
  ASSERT_EQ(backends.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(backends.status().message()),
              HasSubstr(devices->empty() ? "no CUDA device" : devices->front().id));
}

TEST(MakeBackends, CudaIsCompiledInAndAutoFallsBackToTheCpu) {
  EXPECT_THAT(CompiledBackends(), Contains("cuda"));
  EXPECT_EQ(MakeBackends("cuda", {}).status().code(), absl::StatusCode::kNotFound);
  const auto backends = MakeBackends("auto", {});
  ASSERT_TRUE(backends.ok()) << backends.status();
  ASSERT_EQ(backends->size(), 1u);
  EXPECT_EQ(backends->front()->name(), "cpu");
}

}  // namespace
}  // namespace fulcrum::cuda

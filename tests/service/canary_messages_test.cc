// What StartCanary's message becomes: defaults, and limits that are no limits.
// SPDX-License-Identifier: Apache-2.0
#include "service/canary_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/service/support/lever_requests.h"

namespace fulcrum::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

v1::StartCanaryRequest Request() { return test::CanaryRequest("m16_tc", "all", 0.1); }
std::string Refusal(const v1::StartCanaryRequest& request) {
  const absl::Status status = SpecOf(request, "me").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(CanaryMessages, GuardsThatAreNotSetHaveTheirDefaults) {
  const auto spec = SpecOf(Request(), "me");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->guards.kernel_p50, 1.02);
  EXPECT_EQ(spec->guards.kernel_p99, 1.05);
  EXPECT_EQ(spec->guards.heartbeat, absl::InfiniteDuration());
}

TEST(CanaryMessages, OneNumberAloneSwitchesAGuardOff) {
  v1::StartCanaryRequest request = Request();
  request.mutable_guards()->set_kernel_p50(-1);
  request.mutable_guards()->set_kernel_p99(100);
  const auto spec = SpecOf(request, "me");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->guards.kernel_p50, kInfinity);
  EXPECT_EQ(spec->guards.kernel_p99, 100);
  // It comes back as it was given.
  CanaryReport report;
  report.spec = *spec;
  EXPECT_EQ(MessageOf(report).guards().kernel_p50(), -1);
  for (const double limit : {kInfinity, -kInfinity, kNan, -0.5, -2.0, 0.99, 100.5}) {
    request = Request();
    request.mutable_guards()->set_kernel_p50(limit);
    EXPECT_THAT(Refusal(request), AllOf(HasSubstr("guards.kernel_p50"), HasSubstr("from 1"),
                                        HasSubstr("to 100"), HasSubstr("-1 for no such guard")))
        << limit;
    request = Request();
    request.mutable_guards()->set_kernel_p99(limit);
    EXPECT_THAT(Refusal(request), HasSubstr("guards.kernel_p99")) << limit;
  }
}

TEST(CanaryMessages, OtherGuardsAreRefusedByNameToo) {
  for (const double seconds : {kInfinity, kNan, -1.0, 0.5}) {
    v1::StartCanaryRequest request = Request();
    request.mutable_guards()->set_heartbeat_seconds(seconds);
    EXPECT_THAT(Refusal(request), HasSubstr("guards.heartbeat")) << seconds;
  }
  v1::StartCanaryRequest request = Request();
  request.mutable_guards()->set_min_samples(-1);
  EXPECT_THAT(Refusal(request), HasSubstr("guards.min_samples"));
  request = Request();
  request.mutable_guards()->set_max_declines(-1);
  EXPECT_THAT(Refusal(request), HasSubstr("guards.max_declines"));
  for (const double share : {0.0, 1.0, -0.1, kNan, kInfinity}) {
    request = Request();
    request.set_share(share);
    EXPECT_THAT(Refusal(request), HasSubstr("share")) << share;
  }
}

}  // namespace
}  // namespace fulcrum::service

// Control and canary side by side on /metrics: which series there are while a canary runs, once it
// is over, and when the next one starts.
// SPDX-License-Identifier: Apache-2.0
#include "service/metrics_canary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "prometheus/text_serializer.h"
#include "tests/service/support/lever_requests.h"
#include "tests/service/support/test_server.h"

namespace fulcrum::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Scraped(const CanarySeries& series) {
  return prometheus::TextSerializer().Serialize(series.Collect());
}

CanaryReport Report() {
  return {.rows = {{.family = Family::kAttnO,
                    .step = Step::kDecode,
                    .bucket = BucketOf(6),
                    .control_batches = 95,
                    .canary_batches = 5,
                    .control_seconds = 0.25,
                    .canary_seconds = 0.125,
                    .control_p50 = 2e-3,
                    .control_p99 = 3e-3,
                    .canary_p50 = 1e-3,
                    .canary_p99 = 5e-3},
                   {.family = Family::kLmHead,
                    .step = Step::kPrefill,
                    .bucket = BucketOf(3000),
                    .canary_batches = 1,
                    .canary_seconds = 1}}};
}

TEST(CanarySeries, SidesFamiliesAndRowsAreApart) {
  CanarySeries series;
  EXPECT_THAT(Scraped(series), Not(HasSubstr("fulcrum_canary_kernel_seconds{")));
  series.SetSource([] { return Report(); });
  const std::string text = Scraped(series);
  const std::string group = "family=\"attn_o\",step=\"decode\",m_bucket=\"5-8\"";
  const std::string control = "{side=\"control\"," + group, canary = "{side=\"canary\"," + group;
  const std::string name = "fulcrum_canary_kernel_seconds";
  EXPECT_THAT(text, AllOf(HasSubstr("# TYPE " + name + " summary"),
                          HasSubstr(name + "_count" + control + "} 95"),
                          HasSubstr(name + "_count" + canary + "} 5"),
                          HasSubstr(name + "_sum" + control + "} 0.25"),
                          HasSubstr(name + "_sum" + canary + "} 0.125"),
                          HasSubstr(name + control + ",quantile=\"0.5\"} 0.002"),
                          HasSubstr(name + control + ",quantile=\"0.99\"} 0.003"),
                          HasSubstr(name + canary + ",quantile=\"0.5\"} 0.001"),
                          HasSubstr(name + canary + ",quantile=\"0.99\"} 0.005")));
  // A side that ran nothing has no series, rather than one of zeros.
  const std::string alone = "family=\"lm_head\",step=\"prefill\",m_bucket=\"2049+\"}";
  EXPECT_THAT(text, HasSubstr("_count{side=\"canary\"," + alone + " 1"));
  EXPECT_THAT(text, Not(HasSubstr("{side=\"control\"," + alone)));
}

TEST(CanarySeries, QuantilesEndWithTheCanarySumsStay) {
  CanarySeries series;
  series.SetSource([] {
    CanaryReport report = Report();
    report.ended = absl::FromUnixSeconds(1);
    return report;
  });
  const std::string text = Scraped(series);
  EXPECT_THAT(text, Not(HasSubstr("quantile=")));
  EXPECT_THAT(text, HasSubstr("} 95\n"));
}

class CanaryOnNodeTest : public test::ServerTest {
 protected:
  // The device computes nothing true, so every shadow check fails; the guard lets them pass.
  v1::Canary MustStart() {
    v1::StartCanaryRequest request = test::CanaryRequest("m16_tc", "all:one_pass", 0.5);
    request.set_unit(v1::CANARY_UNIT_BATCH);
    request.mutable_guards()->set_max_shadow_failures(1000000);
    grpc::ClientContext context;
    v1::Canary canary;
    const grpc::Status status =
        v1::LeverService::NewStub(channel_)->StartCanary(&context, request, &canary);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return canary;
  }
  void Abort(const v1::Canary& canary) {
    v1::AbortCanaryRequest request;
    request.set_name(canary.name());
    grpc::ClientContext context;
    v1::Canary ignored;
    const grpc::Status status =
        v1::LeverService::NewStub(channel_)->AbortCanary(&context, request, &ignored);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  void Calls(int count) {
    v1::ProjectRequest request = Request(8);
    request.set_policy(v1::POLICY_FASTEST);
    for (int i = 0; i < count; ++i) ASSERT_TRUE(Project(request).ok());
  }
  static std::string Series(const std::string& suffix, const std::string& side,
                            const std::string& more = "") {
    return "fulcrum_canary_kernel_seconds" + suffix + "{side=\"" + side +
           "\",family=\"ffn_down\",step=\"decode\",m_bucket=\"5-8\"" + more + "}";
  }
};

TEST_F(CanaryOnNodeTest, OneCanaryAfterAnother) {
  Start();
  v1::Canary canary = MustStart();
  // While checks are behind, which is this machine's matter, the canary's side gets less.
  int calls = 0;
  double tried = 0;
  for (; tried <= 20 && calls < 20000; calls += 200) {
    Calls(200);
    tried = Metric(Series("_count", "canary"));
  }
  const double control = Metric(Series("_count", "control"));
  EXPECT_GT(control, 20);
  EXPECT_GT(tried, 20);
  EXPECT_EQ(control + tried, calls);
  EXPECT_EQ(control, Metric("fulcrum_canary_batches_total{side=\"control\"}"));
  EXPECT_NEAR(Metric(Series("_sum", "canary")), tried * 2e-6, 1e-9);
  EXPECT_NEAR(Metric(Series("", "canary", ",quantile=\"0.5\"")), 2e-6, 1e-9);
  const std::string failed =
      "fulcrum_canary_shadow_checks_total{family=\"ffn_down\",result=\"fail\",side=\"canary\"}";
  test::Eventually([&] { return Metric(failed) > 0; }, "shadow failures");
  EXPECT_EQ(Metric("fulcrum_canary_shadow_checks_total{family=\"ffn_down\",result=\"fail\",side="
                   "\"control\"}"),
            0);

  Abort(canary);
  EXPECT_EQ(Metric(Series("_count", "canary")), tried);
  EXPECT_EQ(Metric(Series("", "canary", ",quantile=\"0.5\"")), -1);  // no such series
  const double failures = Metric(failed);

  canary = MustStart();
  EXPECT_EQ(Metric(Series("_count", "canary")), -1);
  Calls(50);
  EXPECT_LT(Metric(Series("_count", "canary")), 50);
  EXPECT_GT(Metric(Series("_count", "canary")), 0);
  EXPECT_GE(Metric(failed), failures);  // counts go on
  Abort(canary);
}

}  // namespace
}  // namespace fulcrum::service

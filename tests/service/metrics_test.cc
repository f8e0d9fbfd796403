// Counters and gauges are there at zero from the start, names and labels are those that dashboards
// rely on, and the buckets can answer what is asked of them.
// SPDX-License-Identifier: Apache-2.0
#include "service/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/grpc_metrics.h"
#include "tests/support/cuda_like_ladder.h"
#include "tests/support/fake_backend.h"

namespace fulcrum::service {
namespace {

MetricsSetup OneDevice() {
  MetricsSetup setup;
  setup.ladders = {test::kCudaLikeLadder};
  setup.devices = {"fake:0"};
  setup.version = "1.2.3";
  setup.grpc_methods = NodeGrpcMethods();
  return setup;
}

double Value(const Metrics& metrics, const std::string& series) {
  const std::string text = "\n" + metrics.Text();
  const size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + series.size() + 2, nullptr);
}

const Arm& AnArm() { return test::kCudaLikeLadder[0]; }

std::string Series(const std::string& name, const std::string& extra) {
  return name + "{" + extra + "phase=\"ffn\",";
}

void ObserveEveryHistogram(Metrics& metrics) {
  test::FakeBackend backend;
  const auto shard = test::MakeShard(backend, "models/m/shards/s", 5, Family::kFfnDown);
  metrics.OnLaunch({.arm = &AnArm(), .shard = shard.get(), .rows = 1, .kernel = 1e-3});
  metrics.GrpcTook(0, 1e-3);
}

CanaryReport OneComparison() {
  return {.rows = {{.bucket = BucketOf(6), .control_batches = 1, .control_seconds = 1e-3}}};
}

TEST(Metrics, NamesTypesAndLabelsAreTheContract) {
  Metrics metrics(OneDevice());
  ObserveEveryHistogram(metrics);
  metrics.SetCanarySource([] { return OneComparison(); });
  metrics.SetBookSource([] { return 0; }, [](int) { return 0; });
  const auto one_device = [] { return std::vector<AskedGauges::Sample>{{{{"device", "d"}}, 1}}; };
  metrics.SetDeviceSources(one_device, one_device);
  std::map<std::string, std::string> got;
  for (const auto& collectable : metrics.collectables()) {
    for (const auto& family : collectable->Collect()) {
      ASSERT_FALSE(family.metric.empty()) << family.name;
      EXPECT_FALSE(family.help.empty()) << family.name;
      std::set<std::string> labels;
      for (const auto& label : family.metric.front().label) labels.insert(label.name);
      std::string text = family.type == prometheus::MetricType::Counter     ? "counter"
                         : family.type == prometheus::MetricType::Histogram ? "histogram"
                         : family.type == prometheus::MetricType::Summary   ? "summary"
                                                                            : "gauge";
      for (const std::string& label : labels) text += " " + label;
      got[family.name] = text;
    }
  }
  const std::map<std::string, std::string> want = {
      {"fulcrum_audits_total", "counter result tier"},
      {"fulcrum_batch_rows", "histogram phase tier"},
      {"fulcrum_build_info", "gauge compiler version"},
      {"fulcrum_calls_total", "counter code method"},
      {"fulcrum_canary_batches_total", "counter side"},
      {"fulcrum_canary_kernel_seconds", "summary family m_bucket side step"},
      {"fulcrum_canary_shadow_checks_total", "counter family result side"},
      {"fulcrum_canary_state", "gauge state"},
      {"fulcrum_clients", "gauge"},
      {"fulcrum_declined_total", "counter asked ran reason"},
      {"fulcrum_device_faults_total", "counter device"},
      {"fulcrum_device_last_launch_timestamp_seconds", "gauge device"},
      {"fulcrum_device_serving", "gauge device"},
      {"fulcrum_dropped_observations_total", "counter"},
      {"fulcrum_exceptions_total", "counter where"},
      {"fulcrum_identity_headers_total", "counter result"},
      {"fulcrum_incidents_total", "counter what"},
      {"fulcrum_inflight_calls", "gauge"},
      {"fulcrum_launches_total", "counter close_reason phase tier"},
      {"fulcrum_lever_changes_total", "counter cause lever"},
      {"fulcrum_lever_epoch", "gauge"},
      {"fulcrum_lever_journal_behind", "gauge"},
      {"fulcrum_lever_open", "gauge family lever"},
      {"fulcrum_lever_value", "gauge lever"},
      {"fulcrum_open_rpcs", "gauge grpc_method grpc_service grpc_type"},
      {"fulcrum_queue_bytes", "gauge"},
      {"fulcrum_queue_rows", "gauge"},
      {"fulcrum_rejections_total", "counter reason"},
      {"fulcrum_rows_total", "counter phase step tier"},
      {"fulcrum_shadow_checks_total", "counter result tier"},
      {"fulcrum_shadow_max_ulp", "gauge tier"},
      {"fulcrum_shadow_worst_element", "gauge tier"},
      {"fulcrum_shadow_worst_row_rms", "gauge tier"},
      {"fulcrum_shard_bytes", "gauge device"},
      {"fulcrum_stage_seconds", "histogram phase stage tier"},
      {"fulcrum_tls_certificate_expiry_seconds", "gauge"},
      {"fulcrum_weight_bytes_total", "counter phase tier"},
      {"grpc_server_handled_total", "counter grpc_code grpc_method grpc_service grpc_type"},
      {"grpc_server_handling_seconds", "histogram grpc_method grpc_service grpc_type"},
      {"grpc_server_started_total", "counter grpc_method grpc_service grpc_type"},
  };
  EXPECT_EQ(want, got);
}

TEST(Metrics, CountersAndGaugesAreThereAtZeroHistogramsOnceObserved) {
  const Metrics metrics(OneDevice());
  size_t launches = 0;
  for (const auto& collectable : metrics.collectables()) {
    for (const auto& family : collectable->Collect()) {
      for (const auto& metric : family.metric) {
        if (family.name == "fulcrum_build_info") continue;
        EXPECT_EQ(0, metric.counter.value) << family.name;
        EXPECT_EQ(0, metric.gauge.value) << family.name;
        EXPECT_NE(prometheus::MetricType::Histogram, family.type) << family.name;
      }
      if (family.name == "fulcrum_launches_total") launches = family.metric.size();
    }
  }
  EXPECT_EQ(std::size(test::kCudaLikeLadder) * kAllPhases.size() * kAllCloseReasons.size(),
            launches);
}

// What a scrape costs, before and after one call.
TEST(Metrics, AScrapeIsSmall) {
  Metrics metrics(OneDevice());
  const auto lines = [&metrics] {
    const std::string text = metrics.Text();
    return std::count(text.begin(), text.end(), '\n');
  };
  const auto fresh = lines();
  EXPECT_LT(fresh, 2000);
  ObserveEveryHistogram(metrics);
  EXPECT_GT(lines(), fresh);
  EXPECT_LT(lines(), fresh + 200);
}

TEST(Metrics, EventsAddToTheirSeries) {
  Metrics metrics(OneDevice());
  test::FakeBackend backend;
  const auto shard = test::MakeShard(backend, "models/m/shards/s", 5, Family::kFfnDown);
  const std::string tier(AnArm().name);
  metrics.OnLaunch({.arm = &AnArm(),
                    .shard = shard.get(),
                    .step = Step::kPrefill,
                    .rows = 9,
                    .close_reason = CloseReason::kFull,
                    .gather = 1e-6,
                    .copy_in = 0,
                    .kernel = 3e-3,
                    .copy_out = 0});
  metrics.SetBookSource([] { return 1; }, [](int method) { return method; });
  metrics.CallAnswered(CallMethod::kProject, absl::StatusCode::kOk);
  metrics.OnQueue(17, 4096);
  metrics.OnReject(RejectReason::kExpired);
  metrics.OnAudit(AnArm(), AuditResult::kMatch);
  metrics.OnAudit(kScrubArm, AuditResult::kMismatch);
  metrics.OnIncident({.what = "scrub", .shard = {}, .shard_hash = {}, .device = {}, .arm = {}});
  metrics.OnDeviceFault("fake:0", absl::InternalError(""));
  EXPECT_EQ(9, Value(metrics,
                     Series("fulcrum_rows_total", "") + "step=\"prefill\",tier=\"" + tier + "\"}"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_launches_total{close_reason=\"full\",phase=\"ffn\",tier=\"" +
                                  tier + "\"}"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_stage_seconds_count{phase=\"ffn\",stage=\"kernel\",tier=\"" +
                                  tier + "\"}"));
  EXPECT_EQ(9, Value(metrics, "fulcrum_batch_rows_sum{phase=\"ffn\",tier=\"" + tier + "\"}"));
  const int64_t pieces = (9 + AnArm().rows_per_launch - 1) / AnArm().rows_per_launch;
  EXPECT_EQ(static_cast<double>(pieces * shard->weight->resident_bytes()),
            Value(metrics, "fulcrum_weight_bytes_total{phase=\"ffn\",tier=\"" + tier + "\"}"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_inflight_calls"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_calls_total{code=\"OK\",method=\"Project\"}"));
  EXPECT_EQ(17, Value(metrics, "fulcrum_queue_rows"));
  EXPECT_EQ(4096, Value(metrics, "fulcrum_queue_bytes"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_rejections_total{reason=\"expired\"}"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_audits_total{result=\"match\",tier=\"" + tier + "\"}"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_audits_total{result=\"mismatch\",tier=\"scrub\"}"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_incidents_total{what=\"scrub\"}"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_device_faults_total{device=\"fake:0\"}"));
}

TEST(Metrics, LeversAreShown) {
  Metrics metrics(OneDevice());
  LeverSnapshot snapshot;
  snapshot.epoch = 7;
  ASSERT_TRUE(snapshot.levers.Set("m16_tc", "attn_o:one_pass").ok());
  ASSERT_TRUE(snapshot.levers.Set("max_batch_rows", "8").ok());
  metrics.SetLevers(snapshot);
  EXPECT_EQ(7, Value(metrics, "fulcrum_lever_epoch"));
  EXPECT_EQ(1, Value(metrics, "fulcrum_lever_open{family=\"attn_o\",lever=\"m16_tc\"}"));
  EXPECT_EQ(0, Value(metrics, "fulcrum_lever_open{family=\"attn_qkv\",lever=\"m16_tc\"}"));
  EXPECT_EQ(8, Value(metrics, "fulcrum_lever_value{lever=\"max_batch_rows\"}"));
}

TEST(Metrics, AnArmOfNoLadderIsIgnored) {
  Metrics metrics(OneDevice());
  const Arm stranger = {.name = "stranger", .gate = {}};
  const std::string before = metrics.Text();
  metrics.OnCallQueued(stranger, Phase::kFfn, 1);
  metrics.OnAudit(stranger, AuditResult::kMatch);
  EXPECT_EQ(before, metrics.Text());
}

// The quantile that histogram_quantile() computes: linear inside a bucket.
double Quantile(const Histogram::Values& values, std::span<const double> bounds, double q) {
  const double rank = q * static_cast<double>(values.cumulative.back());
  for (size_t i = 0; i < bounds.size(); ++i) {
    const auto count = static_cast<double>(values.cumulative[i]);
    if (count < rank) continue;
    const double below = i == 0 ? 0 : static_cast<double>(values.cumulative[i - 1]);
    const double low = i == 0 ? 0 : bounds[i - 1];
    return low + (bounds[i] - low) * (rank - below) / (count - below);
  }
  return bounds.back();
}

TEST(StageBuckets, QuantilesAreRightWithinFifteenPercent) {
  constexpr int kValues = 20000;
  std::mt19937_64 random(1);
  for (Stage stage : {Stage::kQueue, Stage::kKernel, Stage::kReply}) {
    // Log-normal around medians from 20 us to 2 s, narrow and wide.
    for (double median = 20e-6; median < 2.1; median *= 1.6) {
      for (double spread : {0.15, 0.3, 0.5, 1.0}) {
        std::lognormal_distribution<double> draw(std::log(median), spread);
        Histogram histogram(StageBounds(stage));
        std::vector<double> all;
        for (int i = 0; i < kValues; ++i) {
          all.push_back(draw(random));
          ASSERT_TRUE(histogram.Observe(all.back()));
        }
        std::sort(all.begin(), all.end());
        const Histogram::Values values = histogram.Collect();
        for (double q : {0.5, 0.99}) {
          const double truth = all[static_cast<size_t>(q * kValues) - 1];
          if (truth > 3) continue;  // coarse from there
          EXPECT_NEAR(Quantile(values, StageBounds(stage), q) / truth, 1, 0.15)
              << Name(stage) << " median " << median << " spread " << spread << " q " << q;
        }
      }
    }
  }
}

TEST(StageBuckets, FineWhereItMattersAndLongEnoughForAStall) {
  for (Stage stage : kAllStages) {
    const std::span<const double> bounds = StageBounds(stage);
    const bool is_short = stage == Stage::kAdmit || stage == Stage::kGather ||
                          stage == Stage::kCopyIn || stage == Stage::kCopyOut;
    const double fine_end = is_short ? 0.02 : 3, growth = is_short ? 1.81 : 1.31;
    EXPECT_DOUBLE_EQ(is_short ? 2e-6 : 1e-5, bounds.front());
    EXPECT_LE(bounds.size(), is_short ? 26u : 54u);
    EXPECT_GE(bounds.back(), 60) << Name(stage);
    for (size_t i = 1; i < bounds.size(); ++i) {
      EXPECT_GT(bounds[i], bounds[i - 1]);
      if (bounds[i] <= fine_end) {
        EXPECT_LE(bounds[i] / bounds[i - 1], growth) << bounds[i];
      }
    }
    // A stall of 30 s has a bucket of its own, below the last.
    Histogram histogram(bounds);
    histogram.Observe(30);
    const auto values = histogram.Collect();
    EXPECT_EQ(1u, values.cumulative[bounds.size() - 1]);
    EXPECT_EQ(0u, values.cumulative[bounds.size() - 3]);
  }
}

TEST(StageBuckets, BoundsAreShortDecimals) {
  for (Stage stage : kAllStages) {
    for (const double bound : StageBounds(stage)) {
      char text[32];
      std::snprintf(text, sizeof(text), "%.4g", bound);
      EXPECT_EQ(bound, std::strtod(text, nullptr)) << Name(stage);
    }
  }
}

// What a node can measure has a finite bucket in every family: times of up to a minute, and rows of
// the largest call that a configuration allows.
TEST(Metrics, NoHistogramEndsBelowWhatItMeasures) {
  constexpr int kMostRows = 1 << 20;
  Metrics metrics(OneDevice());
  test::FakeBackend backend;
  const auto shard = test::MakeShard(backend, "models/m/shards/s", 5, Family::kFfnDown);
  metrics.OnLaunch({.arm = &AnArm(),
                    .shard = shard.get(),
                    .step = Step::kPrefill,
                    .rows = kMostRows,
                    .gather = 60,
                    .copy_in = 60,
                    .kernel = 60,
                    .copy_out = 60});
  metrics.OnCallQueued(AnArm(), Phase::kFfn, 60);
  metrics.CallStage(AnArm(), Phase::kFfn, Stage::kAdmit, 60);
  metrics.CallStage(AnArm(), Phase::kFfn, Stage::kReply, 60);
  metrics.GrpcTook(0, 60);
  int histograms = 0;
  for (const auto& collectable : metrics.collectables()) {
    for (const auto& family : collectable->Collect()) {
      if (family.type != prometheus::MetricType::Histogram) continue;
      for (const auto& metric : family.metric) {
        ++histograms;
        const auto& bucket = metric.histogram.bucket;
        EXPECT_EQ(1u, bucket[bucket.size() - 2].cumulative_count) << family.name;
      }
    }
  }
  EXPECT_EQ(kAllStages.size() + 2, static_cast<size_t>(histograms));
}

TEST(Histogram, BadValuesAreDroppedAndCounted) {
  Metrics metrics(OneDevice());
  for (double bad : {std::nan(""), -1.0, std::numeric_limits<double>::infinity()}) {
    metrics.CallStage(AnArm(), Phase::kFfn, Stage::kAdmit, bad);
  }
  metrics.CallStage(AnArm(), Phase::kFfn, Stage::kAdmit, 0.5);
  const std::string labels =
      "{phase=\"ffn\",stage=\"admit\",tier=\"" + std::string(AnArm().name) + "\"}";
  EXPECT_EQ(1, Value(metrics, "fulcrum_stage_seconds_count" + labels));
  EXPECT_EQ(0.5, Value(metrics, "fulcrum_stage_seconds_sum" + labels));
  EXPECT_EQ(3, Value(metrics, "fulcrum_dropped_observations_total"));
}

TEST(Histogram, ExpositionIsCumulative) {
  HistogramFamily family("h", "help");
  const std::vector<double> bounds = {1, 2, 4};
  Histogram* const histogram = family.Add({{"a", "b"}}, bounds);
  for (double v : {0.5, 1.0, 1.5, 3.0, 100.0}) histogram->Observe(v);
  const auto collected = family.Collect();
  const auto& exposed = collected.front().metric.front().histogram;
  ASSERT_EQ(4u, exposed.bucket.size());
  EXPECT_EQ(2u, exposed.bucket[0].cumulative_count);  // le is inclusive
  EXPECT_EQ(3u, exposed.bucket[1].cumulative_count);
  EXPECT_EQ(4u, exposed.bucket[2].cumulative_count);
  EXPECT_EQ(5u, exposed.bucket[3].cumulative_count);
  EXPECT_TRUE(std::isinf(exposed.bucket[3].upper_bound));
  EXPECT_EQ(5u, exposed.sample_count);
  EXPECT_EQ(106.0, exposed.sample_sum);
}

TEST(Histogram, ConcurrentObservationsAreAllCounted) {
  const std::vector<double> bounds = BucketBounds(1, 100, 100);
  Histogram histogram(bounds);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&histogram] {
      for (int i = 0; i < 50000; ++i) histogram.Observe(i % 128);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(200000u, histogram.Collect().cumulative.back());
}

}  // namespace
}  // namespace fulcrum::service

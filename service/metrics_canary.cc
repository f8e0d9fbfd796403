// See metrics_canary.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/metrics_canary.h"

#include <string>

#include "prometheus/metric_family.h"

namespace fulcrum::service {
namespace {

struct Side {
  const char* name;
  int64_t batches;
  double seconds, p50, p99;
};

void Add(const CanaryComparison::Row& row, const Side& side, bool running,
         prometheus::MetricFamily& family) {
  if (side.batches == 0) return;
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  metric.label = {{"side", side.name},
                  {"family", std::string(Name(row.family))},
                  {"step", std::string(Name(row.step))},
                  {"m_bucket", Name(row.bucket)}};
  metric.summary.sample_count = static_cast<uint64_t>(side.batches);
  metric.summary.sample_sum = side.seconds;
  if (running) metric.summary.quantile = {{0.5, side.p50}, {0.99, side.p99}};
}

}  // namespace

std::vector<prometheus::MetricFamily> CanarySeries::Collect() const {
  prometheus::MetricFamily kernel;
  kernel.name = "fulcrum_canary_kernel_seconds";
  kernel.help =
      "Kernel stage of the batches that the running or last canary compares, by side; quantiles, "
      "while it runs, of some 512 recent ones of each side, of every number of rows and shapes of "
      "weights as many.";
  kernel.type = prometheus::MetricType::Summary;
  const std::optional<CanaryReport> report = source_ ? source_() : std::nullopt;
  if (report.has_value()) {
    const bool running = report->ended == absl::InfiniteFuture();
    for (const CanaryComparison::Row& row : report->rows) {
      Add(row,
          {"control", row.control_batches, row.control_seconds, row.control_p50, row.control_p99},
          running, kernel);
      Add(row, {"canary", row.canary_batches, row.canary_seconds, row.canary_p50, row.canary_p99},
          running, kernel);
    }
  }
  return {std::move(kernel)};
}

}  // namespace fulcrum::service

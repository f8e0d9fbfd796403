// Control and canary side by side for Prometheus: what the comparison of the running or last canary
// holds, read when somebody scrapes. It is made of the report that `fulcrum levers watch` shows, so
// the two cannot differ, and there are only series for what that canary met, none that grow from
// canary to canary. What is counted as it happens is metrics.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "prometheus/collectable.h"
#include "scheduler/canary.h"

namespace fulcrum::service {

class CanarySeries final : public prometheus::Collectable {
 public:
  using Source = std::function<std::optional<CanaryReport>()>;
  // Before the first scrape; without it there are no series.
  void SetSource(Source source) { source_ = std::move(source); }

  // Quantiles are of recent batches, so they end with the canary: a flat line behind it would look
  // like traffic. Sums and counts stay until the next canary starts from zero, which Prometheus
  // takes as it takes a restart.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  Source source_;
};

}  // namespace fulcrum::service

// A gauge whose value is asked for when somebody scrapes: for what changes where nobody tells.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/labels.h"
#include "prometheus/metric_family.h"

namespace fulcrum::service {

// The same with labels: one sample for each entry of what its source returns.
class AskedGauges final : public prometheus::Collectable {
 public:
  using Sample = std::pair<prometheus::Labels, double>;
  using Source = std::function<std::vector<Sample>()>;
  AskedGauges(std::string name, std::string help)
      : name_(std::move(name)), help_(std::move(help)) {}

  // As AskedGauge; without a source there are no samples.
  void SetSource(Source source) { source_ = std::move(source); }

  std::vector<prometheus::MetricFamily> Collect() const override {
    prometheus::MetricFamily family;
    family.name = name_;
    family.help = help_;
    family.type = prometheus::MetricType::Gauge;
    for (const auto& [labels, value] : source_ ? source_() : std::vector<Sample>()) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      for (const auto& [key, text] : labels) metric.label.push_back({key, text});
      metric.gauge.value = value;
    }
    return {std::move(family)};
  }

 private:
  const std::string name_, help_;
  Source source_;
};

class AskedGauge final : public prometheus::Collectable {
 public:
  AskedGauge(std::string name, std::string help) : name_(std::move(name)), help_(std::move(help)) {}

  // Before the first scrape, and good until the last; without it the value is 0.
  void SetSource(std::function<double()> source) { source_ = std::move(source); }

  std::vector<prometheus::MetricFamily> Collect() const override {
    prometheus::MetricFamily family;
    family.name = name_;
    family.help = help_;
    family.type = prometheus::MetricType::Gauge;
    family.metric.emplace_back().gauge.value = source_ ? source_() : 0;
    return {std::move(family)};
  }

 private:
  const std::string name_, help_;
  std::function<double()> source_;
};

}  // namespace fulcrum::service

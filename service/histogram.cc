// Counting, and the exposition model.
// SPDX-License-Identifier: Apache-2.0
#include "service/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "prometheus/metric_family.h"

namespace fulcrum::service {

std::vector<double> BucketBounds(double first, double fine_end, double last, double growth) {
  // Equal steps that end exactly on fine_end.
  const int steps = static_cast<int>(std::ceil(std::log(fine_end / first) / std::log(growth)));
  std::vector<double> bounds;
  for (int i = 0; i <= steps; ++i) {
    // Three significant digits keep the labels readable; the rounding is far below the growth.
    const double exact = first * std::pow(fine_end / first, static_cast<double>(i) / steps);
    // Powers of ten with a negative exponent are no doubles: a division by their inverse is right
    // to the last bit, and the label is "0.0866", not "0.08660000000000001".
    const double inverse_unit = std::pow(10.0, 2 - std::floor(std::log10(exact)));
    bounds.push_back(std::round(exact * inverse_unit) / inverse_unit);
  }
  while (bounds.back() < last) bounds.push_back(bounds.back() * 4);
  return bounds;
}

bool Histogram::Observe(double value) {
  if (!(value >= 0) || value == std::numeric_limits<double>::infinity()) return false;
  const auto index = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(index)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
  return true;
}

Histogram::Values Histogram::Collect() const {
  Values values;
  values.cumulative.reserve(bounds_.size() + 1);
  uint64_t total = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    values.cumulative.push_back(total);
  }
  values.sum = sum_.load(std::memory_order_relaxed);
  return values;
}

Histogram* HistogramFamily::Add(const prometheus::Labels& labels, std::span<const double> bounds) {
  return &series_.emplace_back(labels, bounds).histogram;
}

std::vector<prometheus::MetricFamily> HistogramFamily::Collect() const {
  prometheus::MetricFamily family;
  family.name = name_;
  family.help = help_;
  family.type = prometheus::MetricType::Histogram;
  for (const Series& series : series_) {
    const Histogram::Values values = series.histogram.Collect();
    if (values.cumulative.back() == 0) continue;
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    for (const auto& [name, value] : series.labels) metric.label.push_back({name, value});
    const std::span<const double> bounds = series.histogram.bounds();
    metric.histogram.bucket.reserve(values.cumulative.size());
    for (size_t i = 0; i < values.cumulative.size(); ++i) {
      metric.histogram.bucket.push_back(
          {values.cumulative[i],
           i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity()});
    }
    metric.histogram.sample_count = values.cumulative.back();
    metric.histogram.sample_sum = values.sum;
  }
  return {std::move(family)};
}

}  // namespace fulcrum::service

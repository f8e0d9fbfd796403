// Histograms for the hot path: fixed buckets, atomic counts, no lock. One family is a
// prometheus::Collectable with all its series made up front, so that observing takes no lock; one
// that was never observed is not exposed, since most arms never meet most phases. What is measured,
// and in which buckets, is metrics.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/labels.h"

namespace fulcrum::service {

// Upper bounds, rising: from `first` by at most `growth` until `fine_end`, then fourfold until at
// least `last`. An estimated quantile is right within one bucket, the mean (sum over count)
// exactly.
std::vector<double> BucketBounds(double first, double fine_end, double last, double growth = 1.8);

class Histogram {
 public:
  // `bounds` outlive the histogram.
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds.size() + 1)) {}

  // False, and nothing counted, for NaN, infinities and negative values: one of them would spoil
  // the sum for ever.
  bool Observe(double value);

  struct Values {
    std::vector<uint64_t> cumulative;  // one a bound, then all
    double sum = 0;
  };
  Values Collect() const;
  std::span<const double> bounds() const { return bounds_; }

 private:
  const std::span<const double> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // the last: above every bound
  std::atomic<double> sum_{0};
};

// A named family. Add everything before the first scrape: adding is not thread-safe, observing and
// collecting are.
class HistogramFamily final : public prometheus::Collectable {
 public:
  HistogramFamily(std::string name, std::string help)
      : name_(std::move(name)), help_(std::move(help)) {}

  // The handle is valid as long as the family.
  Histogram* Add(const prometheus::Labels& labels, std::span<const double> bounds);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Series {
    Series(const prometheus::Labels& l, std::span<const double> bounds)
        : labels(l), histogram(bounds) {}
    prometheus::Labels labels;
    Histogram histogram;
  };
  const std::string name_, help_;
  std::deque<Series> series_;  // stable addresses
};

}  // namespace fulcrum::service

// Latencies as counts in log-linear buckets: constant memory, percentiles of any sample size with a
// relative error of at most 1/256. Not thread-safe: one a recorder, merged at the end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fulcrum::cli {

// Values are nanoseconds, 0 up to 2^42 (73 minutes); larger ones count as the largest. Below 2^7
// each value has its own bucket; above, every power of two is cut into 2^7 equal ones, reported by
// their middle.
class Histogram {
 public:
  Histogram() : counts_(kBuckets) {}

  void Record(int64_t nanoseconds);
  void Merge(const Histogram& other);

  int64_t count() const { return count_; }
  int64_t max() const { return max_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  // The smallest recorded value (to the bucket) that at least `quantile` of all do not exceed; 0
  // when empty. Percentile(1) is max().
  double Percentile(double quantile) const;

 private:
  static constexpr int kSubBits = 7;
  static constexpr int kMaxBits = 42;
  static constexpr size_t kBuckets = static_cast<size_t>(kMaxBits - kSubBits + 1) << kSubBits;
  static size_t BucketOf(uint64_t value);
  static double MiddleOf(size_t bucket);

  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  int64_t max_ = 0;
  double sum_ = 0;
};

}  // namespace fulcrum::cli

// Bucket arithmetic.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fulcrum::cli {

size_t Histogram::BucketOf(uint64_t value) {
  const int width = static_cast<int>(std::bit_width(value));
  if (width <= kSubBits) return value;
  // The leading bit says which power of two, the kSubBits after it which part.
  const int shift = width - 1 - kSubBits;
  const uint64_t part = (value >> shift) - (1u << kSubBits);
  return (static_cast<size_t>(shift + 1) << kSubBits) + part;
}

double Histogram::MiddleOf(size_t bucket) {
  if (bucket < (1u << kSubBits)) return static_cast<double>(bucket);
  const int shift = static_cast<int>(bucket >> kSubBits) - 1;
  const uint64_t part = (bucket & ((1u << kSubBits) - 1)) + (1u << kSubBits);
  return std::ldexp(static_cast<double>(part) + (shift == 0 ? 0.0 : 0.5), shift);
}

void Histogram::Record(int64_t nanoseconds) {
  const uint64_t value = std::min<uint64_t>(
      static_cast<uint64_t>(std::max<int64_t>(nanoseconds, 0)), (uint64_t{1} << kMaxBits) - 1);
  ++counts_[BucketOf(value)];
  ++count_;
  max_ = std::max(max_, static_cast<int64_t>(value));
  sum_ += static_cast<double>(value);
}

void Histogram::Merge(const Histogram& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
}

double Histogram::Percentile(double quantile) const {
  if (count_ == 0) return 0;
  // 0.07 * 100 is a little above 7 in binary; the rank meant is 7.
  constexpr double kJustBelow = 1 - 1e-12;
  const auto rank = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(quantile * kJustBelow * static_cast<double>(count_))), 1,
      count_);
  if (rank == count_) return static_cast<double>(max_);
  int64_t seen = 0;
  size_t bucket = 0;
  while ((seen += counts_[bucket]) < rank) ++bucket;
  return std::min(MiddleOf(bucket), static_cast<double>(max_));
}

}  // namespace fulcrum::cli

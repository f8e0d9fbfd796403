// Percentiles against sorted samples: relative error, edges, merging.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace fulcrum::cli {
namespace {

double TruePercentile(std::vector<int64_t> values, double quantile) {
  std::sort(values.begin(), values.end());
  const auto rank =
      static_cast<size_t>(std::ceil(quantile * (1 - 1e-12) * static_cast<double>(values.size())));
  return static_cast<double>(values[std::max<size_t>(rank, 1) - 1]);
}

TEST(Histogram, WithinOnePercentOverTenDecades) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(0, 12);
  Histogram histogram;
  std::vector<int64_t> values;
  for (int i = 0; i < 50000; ++i) {
    values.push_back(static_cast<int64_t>(std::pow(10.0, exponent(random))));
    histogram.Record(values.back());
  }
  for (const double quantile : {0.001, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999, 0.9999}) {
    const double expected = TruePercentile(values, quantile);
    EXPECT_LE(std::abs(histogram.Percentile(quantile) - expected), expected / 256)
        << "quantile " << quantile;
  }
  EXPECT_EQ(histogram.Percentile(1), static_cast<double>(histogram.max()));
}

TEST(Histogram, EveryValueOnABucketsEdgeStaysWithinItsError) {
  for (int bit = 0; bit < 42; ++bit) {
    for (const int64_t offset : {-1, 0, 1}) {
      const int64_t value = (int64_t{1} << bit) + offset;
      Histogram histogram;
      histogram.Record(value);
      histogram.Record((int64_t{1} << 42) - 1);  // so that the maximum is another one
      const auto v = static_cast<double>(value);
      EXPECT_LE(std::abs(histogram.Percentile(0.5) - v), v / 256) << value;
    }
  }
}

TEST(Histogram, SmallValuesAreExact) {
  Histogram histogram;
  for (int value = 0; value < 100; ++value) histogram.Record(value);
  for (int value = 0; value < 99; ++value)
    EXPECT_EQ(histogram.Percentile((value + 1) / 100.0), value);
}

TEST(Histogram, EmptyNegativeAndHuge) {
  Histogram histogram;
  EXPECT_EQ(histogram.Percentile(0.5), 0);
  EXPECT_EQ(histogram.mean(), 0);
  histogram.Record(-5);
  EXPECT_EQ(histogram.max(), 0);
  histogram.Record(INT64_MAX);
  EXPECT_EQ(histogram.max(), (int64_t{1} << 42) - 1);
}

TEST(Histogram, MergeIsTheSameAsRecordingTogether) {
  Histogram a, b, both;
  for (int i = 1; i < 4000; ++i) {
    (i % 3 ? a : b).Record(i * 977);
    both.Record(i * 977);
  }
  a.Merge(b);
  EXPECT_EQ(a.count(), both.count());
  EXPECT_EQ(a.max(), both.max());
  EXPECT_DOUBLE_EQ(a.mean(), both.mean());
  for (const double q : {0.1, 0.5, 0.99}) EXPECT_EQ(a.Percentile(q), both.Percentile(q));
}

}  // namespace
}  // namespace fulcrum::cli

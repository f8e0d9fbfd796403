// Quantiles, and how often the interval of a change holds the truth.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/sample_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace fulcrum::cli {
namespace {

TEST(SampleStats, QuantilesAreSamples) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({3}, 0.99), 3);
  const std::vector<double> samples = {5, 1, 4, 2, 3};
  EXPECT_EQ(Quantile(samples, 0), 1);
  EXPECT_EQ(Quantile(samples, 0.5), 3);
  EXPECT_EQ(Quantile(samples, 0.9), 5);
}

TEST(SampleStats, TheIntervalOfSixPairsIsAllOfThem) {
  const std::vector<double> a(6, 2.0), b = {2.25, 2.5, 2.75, 2.125, 3, 2.375};
  const Change change = PairedChange(a, b);
  EXPECT_EQ(change.low, 0.0625);
  EXPECT_EQ(change.high, 0.5);
  EXPECT_EQ(change.median, 0.21875);
  EXPECT_EQ(change.Sign(), 1);
  EXPECT_EQ(PairedChange(b, a).Sign(), -1);
}

TEST(SampleStats, RanksAreTheSignTests) {
  // Of 20 pairs the published 95 % interval of the sign test runs from the 6th to the 15th.
  std::vector<double> a(20, 1.0), b;
  for (int i = 1; i <= 20; ++i) b.push_back(1.0 + i);
  EXPECT_DOUBLE_EQ(PairedChange(a, b).low, 6);
  EXPECT_DOUBLE_EQ(PairedChange(a, b).high, 15);
}

// Noise with a heavy tail, a drift that both of a pair share, and no change at all.
TEST(SampleStats, NoChangeIsRarelyMistakenForOne) {
  constexpr int kRuns = 4000;
  std::mt19937_64 random(1);
  std::cauchy_distribution<double> noise(0, 0.02);
  for (const int pairs : {6, 20, 101}) {
    int wrong = 0;
    for (int run = 0; run < kRuns; ++run) {
      std::vector<double> a, b;
      for (int i = 0; i < pairs; ++i) {
        const double drift = 1 + 0.5 * i;
        a.push_back(drift * std::exp(noise(random)));
        b.push_back(drift * std::exp(noise(random)));
      }
      wrong += PairedChange(a, b).Sign() != 0;
    }
    EXPECT_LE(wrong, kRuns * 0.06) << pairs;
  }
}

TEST(SampleStats, ARealChangeIsFoundInDrift) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> noise(0, 0.01);
  std::vector<double> a, b;
  for (int i = 0; i < 40; ++i) {
    const double drift = 1 + 0.05 * i;
    a.push_back(drift * (1 + noise(random)));
    b.push_back(drift * 1.03 * (1 + noise(random)));
  }
  EXPECT_EQ(PairedChange(a, b).Sign(), 1);
}

}  // namespace
}  // namespace fulcrum::cli

// Send schedules: rate, spacing, shape, determinism.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fulcrum::cli {
namespace {

TEST(Arrivals, ConstantIsEvenlySpaced) {
  Arrivals arrivals(ArrivalKind::kConstant, 4, 1, 0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(arrivals.Next(), i / 4.0);
}

TEST(Arrivals, BurstSendsGroupsAtTheSameMeanRate) {
  Arrivals arrivals(ArrivalKind::kBurst, 100, 5, 0);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(arrivals.Next(), (i / 5 * 5) / 100.0);
}

// Exponential gaps: mean 1 / rate, deviation equal to the mean, and 1/e of them longer than it.
TEST(Arrivals, PoissonGapsAreExponential) {
  constexpr int kCalls = 200000;
  constexpr double kRate = 250;
  Arrivals arrivals(ArrivalKind::kPoisson, kRate, 1, 42);
  double last = 0, squares = 0;
  int longer = 0;
  for (int i = 0; i < kCalls; ++i) {
    const double now = arrivals.Next();
    const double gap = now - last;
    ASSERT_GE(gap, 0);
    squares += gap * gap;
    longer += gap > 1 / kRate;
    last = now;
  }
  const double mean = last / kCalls;
  // Five standard errors of each statistic.
  EXPECT_LT(std::abs(mean * kRate - 1), 5 / std::sqrt(kCalls));
  EXPECT_LT(std::abs(squares / kCalls * kRate * kRate - 2), 5 * std::sqrt(20.0 / kCalls));
  EXPECT_LT(std::abs(longer / static_cast<double>(kCalls) - std::exp(-1)),
            5 * 0.49 / std::sqrt(kCalls));
}

TEST(Arrivals, AFunctionOfTheSeed) {
  Arrivals a(ArrivalKind::kPoisson, 10, 1, 1), same(ArrivalKind::kPoisson, 10, 1, 1),
      other(ArrivalKind::kPoisson, 10, 1, 2);
  const double first = a.Next();
  EXPECT_EQ(first, same.Next());
  EXPECT_NE(first, other.Next());
}

}  // namespace
}  // namespace fulcrum::cli

// Statistics of few samples that promise nothing about their distribution: quantiles, and the
// change between pairs with an interval that holds whatever the noise looks like.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

namespace fulcrum::cli {

// The smallest sample that at least `q` of the samples do not exceed; 0 when there are none.
double Quantile(std::vector<double> samples, double q);

// Pairs that a 95 % interval needs: with fewer even all of them prove too little.
inline constexpr int kMinPairs = 6;

struct Change {
  double median = 0;         // of b / a - 1
  double low = 0, high = 0;  // holds the true median with a probability of at least 95 %
  // Which side of no change the whole interval is on: -1, 0 (it holds no change), 1.
  int Sign() const { return high < 0 ? -1 : low > 0 ? 1 : 0; }
};

// The median of the pairs' ratios, and its interval between two of their order statistics, as the
// sign test gives it: whether a pair's ratio lies above its median is a coin, so how many do is
// binomial. It supposes that pairs are independent and nothing else: no normal distribution, and
// drift that both of a pair share cancels. `a` and `b` have the same length, at least kMinPairs,
// and are above 0.
Change PairedChange(std::span<const double> a, std::span<const double> b);

}  // namespace fulcrum::cli

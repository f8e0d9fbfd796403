// See sample_stats.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/sample_stats.h"

#include <algorithm>
#include <cmath>

namespace fulcrum::cli {
namespace {

// The largest r, from 1, such that fewer than r heads in n throws have a probability of at most
// 2.5 %: the interval runs from the r-th smallest to the r-th largest.
size_t RankOfInterval(size_t n) {
  constexpr double kTail = 0.025;
  double below = 0;
  size_t rank = 0;
  const double all = static_cast<double>(n);
  for (size_t heads = 0; heads < n; ++heads) {
    const double h = static_cast<double>(heads);
    below += std::exp(std::lgamma(all + 1) - std::lgamma(h + 1) - std::lgamma(all - h + 1) -
                      all * std::log(2.0));
    if (below > kTail) break;
    rank = heads + 1;
  }
  return std::max<size_t>(rank, 1);
}

}  // namespace

double Quantile(std::vector<double> samples, double q) {
  if (samples.empty()) return 0;
  const double count = static_cast<double>(samples.size());
  const auto rank = static_cast<size_t>(std::clamp(std::ceil(q * count), 1.0, count));
  const auto at = samples.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

Change PairedChange(std::span<const double> a, std::span<const double> b) {
  std::vector<double> ratios(a.size());
  for (size_t i = 0; i < a.size(); ++i) ratios[i] = b[i] / a[i] - 1;
  std::sort(ratios.begin(), ratios.end());
  const size_t n = ratios.size(), rank = RankOfInterval(n);
  return {.median = (ratios[(n - 1) / 2] + ratios[n / 2]) / 2,
          .low = ratios[rank - 1],
          .high = ratios[n - rank]};
}

}  // namespace fulcrum::cli

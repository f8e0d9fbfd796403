// The arithmetic of the latency guards: a test that may be looked at after every batch and still
// keeps its false-alarm rate.
//
// What is tested. Within a cell (same shards' shapes, arms, rows) a block takes `controls` control
// times and the canary times among them. Its outcome is the share of the canary times above
// limit * (an order statistic of the control times). If the canary is no slower than limit times
// the control, a canary time and the control times are exchangeable up to the limit, so each canary
// time exceeds the order statistic number j of k control times with probability at most
// (k + 1 - j) / (k + 1), whatever their distribution is: 1/2 for j = 5 of k = 9 (the median), 1/100
// for j = k = 99 (the 99th percentile). A block holds half of its control times from before the
// first canary time and half from after it, so a load that drifts favours neither side; blocks
// share no time, and where a block ends depends on counts alone, never on what was measured.
//
// How. Evidence against "the mean outcome is at most m" is the wealth of a bettor who starts with 1
// and stakes on every outcome: wealth *= 1 + bet * (outcome - m). It is a supermartingale when the
// claim is true, so it ever reaches 1/a with probability at most a (Ville), however often one
// looks. Several bets share the start money, so none has to be tuned.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace fulcrum {

// A quantile as an order statistic of a block's control times.
struct GuardQuantile {
  int controls = 0;  // k, odd
  int order = 0;     // j, from 1

  // Probability that a time as fast as the controls exceeds the order statistic.
  double null_mean() const { return static_cast<double>(controls + 1 - order) / (controls + 1); }
};
inline constexpr GuardQuantile kMedian = {.controls = 9, .order = 5};
inline constexpr GuardQuantile kP99 = {.controls = 99, .order = 99};

// Wealth against "the mean outcome is at most null_mean".
class Evidence {
 public:
  explicit Evidence(double null_mean);
  void Add(double outcome);                    // 0..1
  double value() const;                        // 1 at first
  double log_value() const { return value_; }  // natural logarithm; never overflows

 private:
  static constexpr std::array kBets = {0.05, 0.1, 0.2, 0.4, 0.7, 0.95};  // of the largest, 1 / mean
  const double null_mean_;
  std::array<double, kBets.size()> log_wealth_{};
  double value_ = 0;
};

// The blocks of one cell.
class QuantileBlocks {
 public:
  // Times further apart than `window` are not compared: the load was another.
  QuantileBlocks(GuardQuantile quantile, double limit, absl::Duration window)
      : quantile_(quantile), limit_(limit), window_(window) {}

  // Times in the order in which the batches ended. The block's outcome when one is full.
  std::optional<double> Add(bool canary, double seconds, absl::Time at);

 private:
  struct Control {
    double seconds;
    absl::Time at;
  };
  double Close();
  int lead() const { return (quantile_.controls + 1) / 2; }

  const GuardQuantile quantile_;
  const double limit_;
  const absl::Duration window_;
  std::vector<Control> before_;  // the latest ones ahead of the first canary time
  std::vector<double> after_, canary_;
  absl::Time first_canary_;
};

}  // namespace fulcrum

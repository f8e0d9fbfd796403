// See exceedance.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/exceedance.h"

#include <algorithm>
#include <cmath>

namespace fulcrum {
namespace {

constexpr size_t kMostCanaryTimes = 1024;  // of one block

}  // namespace

Evidence::Evidence(double null_mean) : null_mean_(null_mean) {}

void Evidence::Add(double outcome) {
  double largest = -INFINITY;
  for (size_t i = 0; i < kBets.size(); ++i) {
    // The stake is under 1 / null_mean, so that the wealth stays above 0.
    log_wealth_[i] += std::log1p(kBets[i] / null_mean_ * (outcome - null_mean_));
    largest = std::max(largest, log_wealth_[i]);
  }
  double sum = 0;
  for (const double log_wealth : log_wealth_) sum += std::exp(log_wealth - largest);
  value_ = largest + std::log(sum / static_cast<double>(kBets.size()));
}

double Evidence::value() const { return std::exp(value_); }

std::optional<double> QuantileBlocks::Add(bool canary, double seconds, absl::Time at) {
  if (!canary_.empty() && at - first_canary_ > window_) {
    canary_.clear();
    after_.clear();
    before_.clear();
  }
  if (canary) {
    if (canary_.empty()) {
      std::erase_if(before_, [&](const Control& c) { return at - c.at > window_; });
      first_canary_ = at;
    }
    if (canary_.size() < kMostCanaryTimes) canary_.push_back(seconds);
    return std::nullopt;
  }
  if (canary_.empty()) {
    if (static_cast<int>(before_.size()) == lead()) before_.erase(before_.begin());
    before_.push_back({seconds, at});
    return std::nullopt;
  }
  after_.push_back(seconds);
  if (static_cast<int>(before_.size() + after_.size()) < quantile_.controls) return std::nullopt;
  return Close();
}

double QuantileBlocks::Close() {
  std::vector<double> controls = std::move(after_);
  for (const Control& control : before_) controls.push_back(control.seconds);
  const auto at = controls.begin() + (quantile_.order - 1);
  std::nth_element(controls.begin(), at, controls.end());
  const double threshold = limit_ * *at;
  const auto above = std::count_if(canary_.begin(), canary_.end(),
                                   [&](double seconds) { return seconds > threshold; });
  const double outcome = static_cast<double>(above) / static_cast<double>(canary_.size());
  before_.clear();
  after_.clear();
  canary_.clear();
  return outcome;
}

}  // namespace fulcrum

// The retry rules of retry.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/retry.h"

#include <algorithm>
#include <cmath>

#include "client/cpp/status.h"

namespace fulcrum::client {

bool RetryBudget::Withdraw() {
  absl::MutexLock lock(&mu_);
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

void RetryBudget::Deposit() {
  absl::MutexLock lock(&mu_);
  tokens_ = std::min(capacity_, tokens_ + refill_);
}

double RetryBudget::tokens() const {
  absl::MutexLock lock(&mu_);
  return tokens_;
}

bool Retryable(const FailedAttempt& attempt) {
  switch (attempt.status.code()) {
    case absl::StatusCode::kUnavailable:
      return true;
    case absl::StatusCode::kCancelled:
      return !attempt.node_answered;
    case absl::StatusCode::kResourceExhausted:
      return DetailsOf(attempt.status).retry_delay.has_value();
    default:
      return false;
  }
}

std::optional<absl::Duration> RetryDelay(const RetryOptions& options, const FailedAttempt& attempt,
                                         double random) {
  if (attempt.attempts_made >= options.max_attempts || !Retryable(attempt)) return std::nullopt;
  const double growth = std::exp2(std::min(attempt.attempts_made - 1, 30));
  const absl::Duration backoff = std::min(options.max_backoff, options.initial_backoff * growth);
  const absl::Duration asked = std::max(
      DetailsOf(attempt.status).retry_delay.value_or(absl::ZeroDuration()), absl::ZeroDuration());
  const absl::Duration wait = asked + backoff * random;
  if (wait >= attempt.time_left) return std::nullopt;
  return wait;
}

}  // namespace fulcrum::client

// Which failed attempts may be repeated, when, and how often. Pure apart from the budget's count.
//
// Three situations only: the call did not run because the connection failed or because its node
// drains or lost its device (UNAVAILABLE: the next attempt may reach another node of the target);
// the call ended so although neither its caller nor its node cancelled it (CANCELLED: gRPC ends
// calls this way that reach a server while it stops); or the node refused for load and said that
// waiting helps (RESOURCE_EXHAUSTED with RetryInfo). A deadline that passed, a stale epoch, a bad
// request, or an exhaustion without RetryInfo is the caller's to handle: repeating it only feeds an
// overload.
//
// Asked only about calls without side effects (client.h says which), and never about one that its
// caller has cancelled.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace fulcrum::client {

struct RetryOptions {
  int max_attempts = 4;  // the first included; 1 = never retry
  absl::Duration initial_backoff = absl::Milliseconds(10);
  absl::Duration max_backoff = absl::Seconds(2);
  // Token bucket shared by all calls of a client: a retry takes one token, a success puts
  // `budget_refill` back. A long outage or overload thus adds at most that share of traffic.
  double budget_tokens = 20;
  double budget_refill = 0.1;
};

class RetryBudget {
 public:
  explicit RetryBudget(const RetryOptions& options)
      : capacity_(options.budget_tokens), refill_(options.budget_refill), tokens_(capacity_) {}
  bool Withdraw() ABSL_LOCKS_EXCLUDED(mu_);  // false: no token, do not retry
  void Deposit() ABSL_LOCKS_EXCLUDED(mu_);   // after a success
  double tokens() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const double capacity_;
  const double refill_;
  mutable absl::Mutex mu_;
  double tokens_ ABSL_GUARDED_BY(mu_);
};

// What is known about an attempt that failed.
struct FailedAttempt {
  absl::Status status;
  bool node_answered = false;  // metadata or details of the node came with it
  int attempts_made = 1;       // this one included
  absl::Duration time_left = absl::InfiniteDuration();  // to the call's deadline
};

bool Retryable(const FailedAttempt& attempt);

// How long to wait before the next attempt; nullopt: give the error to the caller. The wait is the
// node's own retry delay (0 without one) plus full jitter over an exponential backoff, and a wait
// that would not leave time before the deadline is no retry. `random` is uniform in [0, 1).
// Takes no budget: withdraw once this says yes.
std::optional<absl::Duration> RetryDelay(const RetryOptions& options, const FailedAttempt& attempt,
                                         double random);

}  // namespace fulcrum::client

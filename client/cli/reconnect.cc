// See reconnect.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/reconnect.h"

#include <algorithm>
#include <ostream>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/text.h"
#include "client/cpp/status.h"

namespace fulcrum::cli {

Reconnect::Reconnect(const Context& context, std::unique_ptr<client::Client> client)
    : context_(context),
      client_(std::move(client)),
      deadline_(context.globals().timeout_s > 0
                    ? absl::Now() + absl::Seconds(context.globals().timeout_s)
                    : absl::InfiniteFuture()) {}

client::CallOptions Reconnect::Call() const {
  client::CallOptions options;
  if (deadline_ < absl::InfiniteFuture()) {
    options.timeout = std::max(deadline_ - absl::Now(), absl::ZeroDuration());
  }
  return options;
}

bool Reconnect::Lost(const absl::Status& status) {
  // A node that stops ends its streams with UNAVAILABLE and may reset others. What a connection
  // that broke leaves of a call has several codes, and then none of them is the node's.
  if (absl::IsUnavailable(status) || absl::IsCancelled(status)) return true;
  return (absl::IsUnknown(status) || absl::IsInternal(status)) && !client::NodeSaid(status);
}

absl::StatusOr<v1::ListLeversResponse> Reconnect::Again(const absl::Status& why) {
  std::ostream& err = context_.err();
  const std::string& target = context_.globals().target;
  err << absl::StrFormat("fulcrum: %s: connection lost (%s); trying again until it is back\n",
                         target, OneLine(client::Describe(why)))
      << std::flush;
  for (absl::Duration wait = kFirstRetry;; wait = std::min(2 * wait, kLongestRetry)) {
    if (absl::Now() + wait >= deadline_) return why;
    absl::SleepFor(wait);
    // A client of its own for each try: a connection that failed has a pause of its own before it
    // tries again, and a node that comes back may have other certificates.
    auto client = context_.Connect();
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    client::CallOptions once;
    once.timeout = std::min(kLongestRetry, deadline_ - absl::Now());
    once.retry = false;
    auto levers = client_->ListLevers(once);
    if (levers.ok()) {
      err << absl::StrFormat("fulcrum: %s: connected again, lever epoch %d is live\n", target,
                             levers->epoch())
          << std::flush;
      return levers;
    }
    if (!Lost(levers.status()) && !absl::IsDeadlineExceeded(levers.status())) return levers;
  }
}

}  // namespace fulcrum::cli

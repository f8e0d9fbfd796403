// What all calls of one client share: connections, retry budget, random jitter. Private to the
// library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/client.h"

namespace fulcrum::client {

// One HTTP/2 connection. `in_flight` is a load estimate for choosing, not a bound.
struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::atomic<int> in_flight{0};
};

// Counts a call on its connection while it lives.
class ConnectionUse {
 public:
  explicit ConnectionUse(Connection* connection) : connection_(connection) {
    connection_->in_flight.fetch_add(1, std::memory_order_relaxed);
  }
  ~ConnectionUse() { connection_->in_flight.fetch_sub(1, std::memory_order_relaxed); }
  ConnectionUse(const ConnectionUse&) = delete;
  ConnectionUse& operator=(const ConnectionUse&) = delete;
  const std::shared_ptr<grpc::Channel>& channel() const { return connection_->channel; }

 private:
  Connection* const connection_;
};

class Client::Core {
 public:
  Core(std::string target, ClientOptions options,
       std::vector<std::shared_ptr<grpc::Channel>> channels);

  const std::string& target() const { return target_; }
  const ClientOptions& options() const { return options_; }
  RetryBudget& budget() { return budget_; }
  std::vector<std::unique_ptr<Connection>>& connections() { return connections_; }

  // The connection with the fewest calls in flight; ties go round.
  Connection* Pick();

  absl::Time DeadlineOf(const CallOptions& options) const;
  // Deadline, metadata and readiness of one attempt.
  static void Prepare(const CallOptions& options, absl::Time deadline,
                      grpc::ClientContext* context);

  // After an attempt: fills `info`; returns the wait before the next attempt, or nullopt when the
  // call is over. Moves budget tokens. `may_retry`: false when the caller wants no other attempt.
  std::optional<absl::Duration> AfterAttempt(const absl::Status& status,
                                             const grpc::ClientContext& context, bool may_retry,
                                             absl::Time deadline, CallInfo* info);

 private:
  const std::string target_;
  const ClientOptions options_;
  RetryBudget budget_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::atomic<uint32_t> turn_{0};
};

}  // namespace fulcrum::client

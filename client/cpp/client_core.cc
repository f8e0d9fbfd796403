// Choosing a connection, preparing an attempt and judging it.
// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/client_core.h"

#include <random>

#include "client/cpp/status.h"

namespace fulcrum::client {
namespace {

constexpr char kCallIdKey[] = "x-fulcrum-call-id";
constexpr char kTraceparentKey[] = "traceparent";
constexpr char kTracestateKey[] = "tracestate";

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

std::string Find(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string()
                                 : std::string(found->second.data(), found->second.size());
}

// Jitter only: no caller depends on the sequence.
double UniformRandom() {
  thread_local std::minstd_rand engine{std::random_device{}()};
  return std::generate_canonical<double, 30>(engine);
}

}  // namespace

Client::Core::Core(std::string target, ClientOptions options,
                   std::vector<std::shared_ptr<grpc::Channel>> channels)
    : target_(std::move(target)), options_(std::move(options)), budget_(options_.retry) {
  for (auto& channel : channels) {
    connections_.push_back(std::make_unique<Connection>());
    connections_.back()->channel = std::move(channel);
  }
}

Connection* Client::Core::Pick() {
  const size_t count = connections_.size();
  const size_t first = turn_.fetch_add(1, std::memory_order_relaxed) % count;
  Connection* best = connections_[first].get();
  for (size_t i = 1; i < count; ++i) {
    Connection* other = connections_[(first + i) % count].get();
    if (other->in_flight.load(std::memory_order_relaxed) <
        best->in_flight.load(std::memory_order_relaxed)) {
      best = other;
    }
  }
  return best;
}

absl::Time Client::Core::DeadlineOf(const CallOptions& options) const {
  return absl::Now() + options.timeout.value_or(options_.default_timeout);
}

void Client::Core::Prepare(const CallOptions& options, absl::Time deadline,
                           grpc::ClientContext* context) {
  if (deadline != absl::InfiniteFuture()) context->set_deadline(absl::ToChronoTime(deadline));
  context->set_wait_for_ready(options.wait_for_ready);
  if (!options.call_id.empty()) context->AddMetadata(kCallIdKey, options.call_id);
  if (!options.traceparent.empty()) context->AddMetadata(kTraceparentKey, options.traceparent);
  if (!options.tracestate.empty()) context->AddMetadata(kTracestateKey, options.tracestate);
}

std::optional<absl::Duration> Client::Core::AfterAttempt(const absl::Status& status,
                                                         const grpc::ClientContext& context,
                                                         bool may_retry, absl::Time deadline,
                                                         CallInfo* info) {
  const Metadata& initial = context.GetServerInitialMetadata();
  const Metadata& trailing = context.GetServerTrailingMetadata();
  info->attempts += 1;
  info->call_id = Find(initial, kCallIdKey);
  if (info->call_id.empty()) info->call_id = Find(trailing, kCallIdKey);
  info->traceparent = Find(initial, kTraceparentKey);
  if (info->traceparent.empty()) info->traceparent = Find(trailing, kTraceparentKey);
  if (status.ok()) {
    budget_.Deposit();
    return std::nullopt;
  }
  if (!may_retry) return std::nullopt;
  const FailedAttempt failed = {
      .status = status,
      .node_answered = !initial.empty() || !trailing.empty() || !DetailsOf(status).empty(),
      .attempts_made = info->attempts,
      .time_left = deadline - absl::Now(),
  };
  std::optional<absl::Duration> wait = RetryDelay(options_.retry, failed, UniformRandom());
  if (wait && !budget_.Withdraw()) wait.reset();
  return wait;
}

}  // namespace fulcrum::client

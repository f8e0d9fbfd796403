// Which attempts are repeated: the rules as values, then attempt counts against a scripted node.
// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/retry.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "client/cpp/client.h"
#include "client/cpp/status.h"
#include "tests/client/support/fake_node.h"

namespace fulcrum::client {
namespace {

FailedAttempt Failed(absl::Status status, bool answered = false) {
  return {.status = std::move(status), .node_answered = answered};
}

absl::Status Exhausted(absl::Duration delay) {
  return FromGrpc(WithRetryInfo(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full", delay));
}

TEST(RetryRules, OnlyLostCallsAndExhaustionWithRetryInfo) {
  EXPECT_TRUE(Retryable(Failed(absl::UnavailableError("refused"))));
  EXPECT_TRUE(Retryable(Failed(absl::UnavailableError("draining"), /*answered=*/true)));
  EXPECT_TRUE(Retryable(Failed(absl::CancelledError("server stops"))));
  EXPECT_FALSE(Retryable(Failed(absl::CancelledError("by the node"), /*answered=*/true)));
  EXPECT_TRUE(Retryable(Failed(Exhausted(absl::Milliseconds(1)), true)));
  EXPECT_FALSE(Retryable(Failed(absl::ResourceExhaustedError("too large for any queue"))));
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnknown, absl::StatusCode::kInvalidArgument,
        absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kNotFound,
        absl::StatusCode::kPermissionDenied, absl::StatusCode::kFailedPrecondition,
        absl::StatusCode::kAborted, absl::StatusCode::kInternal, absl::StatusCode::kDataLoss,
        absl::StatusCode::kUnauthenticated}) {
    EXPECT_FALSE(Retryable(Failed(absl::Status(code, "x")))) << absl::StatusCodeToString(code);
  }
  // RetryInfo does not make any other code retryable.
  EXPECT_FALSE(Retryable(Failed(FromGrpc(
      WithRetryInfo(grpc::StatusCode::DEADLINE_EXCEEDED, "late", absl::Milliseconds(1))))));
}

TEST(RetryRules, WaitsTheNodesDelayPlusJitterAndDoublesTheBackoff) {
  RetryOptions options;
  options.initial_backoff = absl::Milliseconds(10);
  options.max_backoff = absl::Milliseconds(30);
  FailedAttempt attempt = Failed(Exhausted(absl::Milliseconds(100)));
  EXPECT_EQ(RetryDelay(options, attempt, 0.0), absl::Milliseconds(100));
  EXPECT_EQ(RetryDelay(options, attempt, 0.5), absl::Milliseconds(105));
  attempt = Failed(absl::UnavailableError("refused"));
  EXPECT_EQ(RetryDelay(options, attempt, 0.5), absl::Milliseconds(5));
  attempt.attempts_made = 2;
  EXPECT_EQ(RetryDelay(options, attempt, 0.5), absl::Milliseconds(10));
  attempt.attempts_made = 3;
  EXPECT_EQ(RetryDelay(options, attempt, 0.5), absl::Milliseconds(15));  // capped at 30
  attempt.attempts_made = options.max_attempts;
  EXPECT_EQ(RetryDelay(options, attempt, 0.5), std::nullopt);
}

TEST(RetryRules, NeverBeyondTheDeadline) {
  FailedAttempt attempt = Failed(Exhausted(absl::Milliseconds(100)));
  attempt.time_left = absl::Milliseconds(100);
  EXPECT_EQ(RetryDelay({}, attempt, 0.0), std::nullopt);
  attempt.time_left = absl::Milliseconds(101);
  EXPECT_EQ(RetryDelay({}, attempt, 0.0), absl::Milliseconds(100));
}

TEST(RetryBudget, RunsOutAndRefillsWithSuccesses) {
  RetryOptions options;
  options.budget_tokens = 2;
  options.budget_refill = 0.5;
  RetryBudget budget(options);
  EXPECT_TRUE(budget.Withdraw());
  EXPECT_TRUE(budget.Withdraw());
  EXPECT_FALSE(budget.Withdraw());
  budget.Deposit();
  EXPECT_FALSE(budget.Withdraw());
  budget.Deposit();
  EXPECT_TRUE(budget.Withdraw());
  for (int i = 0; i < 100; ++i) budget.Deposit();
  EXPECT_EQ(budget.tokens(), 2);
}

// What the node answers, and how often it must have been asked.
struct Script {
  const char* name;
  grpc::Status first;
  bool node_metadata;
  int attempts;
};

class RetryCounts : public testing::TestWithParam<Script> {
 protected:
  void SetUp() override {
    node_.project = [](grpc::ServerContext* context, const v1::ProjectRequest* request,
                       v1::ProjectResponse* response) {
      if (GetParam().node_metadata) context->AddTrailingMetadata("x-fulcrum-call-id", "c");
      static_cast<void>(request);
      static_cast<void>(response);
      return GetParam().first;
    };
    ClientOptions options;
    options.retry.initial_backoff = absl::Microseconds(10);
    options.retry.max_attempts = 3;
    client_ = *Client::Connect(node_.target(), options);
  }
  FakeNode node_;
  std::unique_ptr<Client> client_;
};

TEST_P(RetryCounts, Blocking) {
  CallInfo info;
  const auto reply = client_->Project({}, {}, &info);
  EXPECT_EQ(reply.status().code(), static_cast<absl::StatusCode>(GetParam().first.error_code()));
  EXPECT_EQ(node_.projects(), GetParam().attempts);
  EXPECT_EQ(info.attempts, GetParam().attempts);
}

TEST_P(RetryCounts, Async) {
  absl::Notification finished;
  absl::Status status;
  int attempts = 0;
  client_->ProjectAsync(std::make_shared<v1::ProjectRequest>(), {},
                        [&](absl::StatusOr<v1::ProjectResponse> reply, const CallInfo& info) {
                          status = reply.status();
                          attempts = info.attempts;
                          finished.Notify();
                        });
  finished.WaitForNotification();
  EXPECT_EQ(status.code(), static_cast<absl::StatusCode>(GetParam().first.error_code()));
  EXPECT_EQ(node_.projects(), GetParam().attempts);
  EXPECT_EQ(attempts, GetParam().attempts);
}

TEST_P(RetryCounts, NotWhenTheCallSaysSo) {
  CallOptions once;
  once.retry = false;
  EXPECT_FALSE(client_->Project({}, once).ok());
  EXPECT_EQ(node_.projects(), 1);
}

using grpc::StatusCode;
INSTANTIATE_TEST_SUITE_P(
    Codes, RetryCounts,
    testing::Values(
        Script{"ExhaustedWithRetryInfo",
               WithRetryInfo(StatusCode::RESOURCE_EXHAUSTED, "queue", absl::Microseconds(10)), true,
               3},
        Script{"ExhaustedForGood", {StatusCode::RESOURCE_EXHAUSTED, "too large"}, true, 1},
        Script{"UnavailableConnection", {StatusCode::UNAVAILABLE, "reset"}, false, 3},
        Script{"CancelledByAStoppingServer", {StatusCode::CANCELLED, "stopping"}, false, 3},
        Script{"CancelledByTheNode", {StatusCode::CANCELLED, "gone"}, true, 1},
        Script{"UnavailableNode", {StatusCode::UNAVAILABLE, "draining"}, true, 3},
        Script{"Deadline", {StatusCode::DEADLINE_EXCEEDED, "queue"}, false, 1},
        Script{"Aborted", {StatusCode::ABORTED, "epoch"}, false, 1},
        Script{"InvalidArgument", {StatusCode::INVALID_ARGUMENT, "rows"}, false, 1},
        Script{"NotFound", {StatusCode::NOT_FOUND, "shard"}, false, 1},
        Script{"Internal", {StatusCode::INTERNAL, "x"}, false, 1}),
    [](const auto& script) { return std::string(script.param.name); });

TEST(Retry, SucceedsOnALaterAttempt) {
  FakeNode node;
  node.project = [&](grpc::ServerContext*, const v1::ProjectRequest* request,
                     v1::ProjectResponse* response) {
    if (node.projects() < 3) {
      return WithRetryInfo(StatusCode::RESOURCE_EXHAUSTED, "queue", absl::Microseconds(1));
    }
    response->set_call_id(request->call_id());
    return grpc::Status::OK;
  };
  const auto client = *Client::Connect(node.target());
  v1::ProjectRequest request;
  request.set_call_id("abc");
  CallInfo info;
  const auto reply = client->Project(request, {}, &info);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->call_id(), "abc");
  EXPECT_EQ(info.attempts, 3);
}

TEST(Retry, BudgetBoundsWhatAnOverloadSees) {
  FakeNode node;
  node.project = [](grpc::ServerContext*, const v1::ProjectRequest*, v1::ProjectResponse*) {
    return WithRetryInfo(StatusCode::RESOURCE_EXHAUSTED, "queue", absl::Microseconds(1));
  };
  ClientOptions options;
  options.retry.initial_backoff = absl::Microseconds(1);
  options.retry.budget_tokens = 5;
  const auto client = *Client::Connect(node.target(), options);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(client->Project({}).ok());
  EXPECT_EQ(node.projects(), 50 + 5);
}

TEST(Retry, GivesUpAtOnceWhenTheDelayPassesTheDeadline) {
  FakeNode node;
  node.project = [](grpc::ServerContext*, const v1::ProjectRequest*, v1::ProjectResponse*) {
    return WithRetryInfo(StatusCode::RESOURCE_EXHAUSTED, "queue", absl::Milliseconds(900));
  };
  const auto client = *Client::Connect(node.target());
  CallOptions options;
  options.timeout = absl::Milliseconds(800);
  // The node's own answer comes back, not a DEADLINE_EXCEEDED made by waiting.
  EXPECT_EQ(client->Project({}, options).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(node.projects(), 1);
}

TEST(Retry, ChangesToTheNodeAreNeverRepeated) {
  FakeNode node;
  std::atomic<int> asked{0};
  node.set_levers = [&](const v1::SetLeversRequest&, v1::SetLeversResponse*) {
    ++asked;
    return grpc::Status(StatusCode::UNAVAILABLE, "reset");
  };
  node.load_shard = [&](const v1::LoadShardRequest&, v1::Shard*) {
    ++asked;
    return grpc::Status(StatusCode::UNAVAILABLE, "reset");
  };
  const auto client = *Client::Connect(node.target());
  EXPECT_FALSE(client->SetLevers({}).ok());
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(client->LoadShard({}).ok());
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(client->ReplaceShard({}).ok());
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace fulcrum::client

// The client's calls against a scripted node: details, metadata, connections, cancellation.
// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <set>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/status.h"
#include "tests/client/support/fake_node.h"

namespace fulcrum::client {
namespace {

using testing::HasSubstr;

TEST(Status, KeepsCodeMessageAndDetails) {
  const absl::Status status = FromGrpc(WithFieldViolation("rows", "expected 1..32, got 33"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const ErrorDetails details = DetailsOf(status);
  ASSERT_EQ(details.field_violations.size(), 1u);
  EXPECT_EQ(details.field_violations[0].field, "rows");
  EXPECT_EQ(details.field_violations[0].description, "expected 1..32, got 33");
  EXPECT_THAT(Describe(status), HasSubstr("INVALID_ARGUMENT: rows: expected 1..32, got 33"));

  const absl::Status busy = FromGrpc(
      WithRetryInfo(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full", absl::Milliseconds(7)));
  EXPECT_EQ(DetailsOf(busy).retry_delay, absl::Milliseconds(7));
  EXPECT_EQ(DetailsOf(FromGrpc(WithEpoch("12"))).metadata.at("live_epoch"), "12");
}

TEST(Status, WithoutOrWithUnreadableDetailsIsStillTheStatus) {
  EXPECT_TRUE(DetailsOf(absl::NotFoundError("x")).empty());
  const absl::Status status =
      FromGrpc(grpc::Status(grpc::StatusCode::DATA_LOSS, "hash", "\xff not a status"));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "hash");
  EXPECT_TRUE(DetailsOf(status).empty());
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(17), "x")).code(),
            absl::StatusCode::kUnknown);
}

TEST(Connect, NamesWhatIsWrong) {
  EXPECT_EQ(Client::Connect("").status().code(), absl::StatusCode::kInvalidArgument);
  ClientOptions options;
  options.channels = 0;
  EXPECT_THAT(std::string(Client::Connect("x:1", options).status().message()),
              HasSubstr("channels: expected 1..64, got 0"));
  options.channels = 1;
  options.tls = TlsOptions{.ca_file = "/nonexistent/ca.pem"};
  const absl::Status missing = Client::Connect("x:1", options).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nonexistent/ca.pem"));
  options.tls = TlsOptions{.cert_file = "c.pem"};
  EXPECT_EQ(Client::Connect("x:1", options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Client, PassesCallIdAndTraceContextAndReturnsTheNodes) {
  FakeNode node;
  std::string call_id, traceparent, tracestate;
  node.project = [&](grpc::ServerContext* context, const v1::ProjectRequest*,
                     v1::ProjectResponse*) {
    const auto get = [&](const char* key) {
      const auto found = context->client_metadata().find(key);
      return found == context->client_metadata().end()
                 ? std::string()
                 : std::string(found->second.data(), found->second.size());
    };
    call_id = get("x-fulcrum-call-id");
    traceparent = get("traceparent");
    tracestate = get("tracestate");
    context->AddInitialMetadata("x-fulcrum-call-id", "node-made");
    context->AddTrailingMetadata("traceparent", "00-aa-bb-01");
    return grpc::Status::OK;
  };
  const auto client = *Client::Connect(node.target());
  CallOptions options;
  options.call_id = "mine";
  options.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  options.tracestate = "vendor=1";
  CallInfo info;
  ASSERT_TRUE(client->Project({}, options, &info).ok());
  EXPECT_EQ(call_id, "mine");
  EXPECT_EQ(traceparent, options.traceparent);
  EXPECT_EQ(tracestate, "vendor=1");
  EXPECT_EQ(info.call_id, "node-made");
  EXPECT_EQ(info.traceparent, "00-aa-bb-01");
}

// A node that refuses, and a port where nobody listens, are both UNAVAILABLE.
TEST(Client, ErrorsOfStreamsSayWhetherTheNodeSaidIt) {
  FakeNode node;
  const grpc::Status stopping(grpc::StatusCode::UNAVAILABLE, "the node is stopping");
  node.project = [&](grpc::ServerContext*, const v1::ProjectRequest*, v1::ProjectResponse*) {
    return stopping;
  };
  node.stream = [&](grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::ProjectStreamResponse, v1::ProjectRequest>* io) {
    v1::ProjectRequest request;
    io->Read(&request);
    v1::ProjectStreamResponse reply;
    reply.set_call_id(request.call_id());
    reply.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
    io->Write(reply);
    io->Read(&request);
    return stopping;
  };
  int watched = 0;
  node.watch_levers = [&](const v1::WatchLeversRequest&, grpc::ServerWriter<v1::LeverEvent>* out) {
    for (int i = 0; i < watched; ++i) out->Write({});
    return stopping;
  };
  std::string nowhere;
  {
    const FakeNode gone;
    nowhere = gone.target();
  }
  CallOptions once;
  once.retry = false;
  for (const bool said : {true, false}) {
    const auto client = *Client::Connect(said ? node.target() : nowhere);
    const auto expect = [&](const absl::Status& status, const char* what) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << what << ": " << status;
      EXPECT_EQ(NodeSaid(status), said) << what << ": " << status;
    };
    expect(client->Project({}, once).status(), "unary");
    std::promise<absl::Status> asynchronous;
    client->ProjectAsync(std::make_shared<v1::ProjectRequest>(), once,
                         [&](absl::StatusOr<v1::ProjectResponse> reply, const CallInfo&) {
                           asynchronous.set_value(reply.status());
                         });
    expect(asynchronous.get_future().get(), "asynchronous");
    for (watched = 0; watched < 2; ++watched) {  // before and after an event
      expect(client->WatchLevers({}, [](const v1::LeverEvent&) { return true; }), "watch");
    }
    const auto stream = client->OpenStream();
    auto first = stream->Send({}), second = stream->Send({});
    expect(first.get().status(), "an error on the stream");
    expect(second.get().status(), "a call that the stream's end left");
    expect(stream->Finish(), "the stream");
  }
}

TEST(Client, EveryCallHasADeadline) {
  FakeNode node;
  absl::Duration left;
  node.project = [&](grpc::ServerContext* context, const v1::ProjectRequest*,
                     v1::ProjectResponse*) {
    left = absl::FromChrono(context->deadline()) - absl::Now();
    return grpc::Status::OK;
  };
  ClientOptions options;
  options.default_timeout = absl::Seconds(50);
  const auto client = *Client::Connect(node.target(), options);
  ASSERT_TRUE(client->Project({}).ok());
  EXPECT_LE(left, absl::Seconds(51));  // the wire rounds a timeout up to three digits
  EXPECT_GT(left, absl::Seconds(20));
}

TEST(Client, ChannelsAreConnectionsOfTheirOwn) {
  FakeNode node;
  std::mutex mu;
  std::set<std::string> peers;
  node.project = [&](grpc::ServerContext* context, const v1::ProjectRequest*,
                     v1::ProjectResponse*) {
    std::lock_guard lock(mu);
    peers.insert(context->peer());
    return grpc::Status::OK;
  };
  ClientOptions options;
  options.channels = 3;
  const auto client = *Client::Connect(node.target(), options);
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(client->Project({}).ok());
  EXPECT_EQ(peers.size(), 3u);
}

TEST(Client, CarriesMessagesBeyondGrpcsPreset) {
  FakeNode node;
  node.project = [](grpc::ServerContext*, const v1::ProjectRequest* request,
                    v1::ProjectResponse* response) {
    response->add_outputs()->set_data(std::string(16 << 20, 'x'));
    return request->activations().size() == size_t{8 << 20}
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::INTERNAL, "short");
  };
  const auto client = *Client::Connect(node.target());
  v1::ProjectRequest request;
  request.set_activations(std::string(8 << 20, 'a'));
  const auto reply = client->Project(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->outputs(0).data().size(), size_t{16 << 20});
}

TEST(Client, UnreachableNodeIsUnavailableAndWaitForReadySaysWhere) {
  ClientOptions options;
  options.retry.max_attempts = 2;
  const auto client = *Client::Connect("127.0.0.1:1", options);
  CallInfo info;
  EXPECT_EQ(client->Project({}, {}, &info).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(info.attempts, 2);
  const absl::Status waited = client->WaitForReady(absl::Milliseconds(50));
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(waited.message()), HasSubstr("127.0.0.1:1"));
}

TEST(Client, AsyncRepliesComeBackToTheirOwnCallers) {
  FakeNode node;
  node.project = [](grpc::ServerContext*, const v1::ProjectRequest* request,
                    v1::ProjectResponse* response) {
    response->add_outputs()->set_data(request->activations());
    return grpc::Status::OK;
  };
  const auto client = *Client::Connect(node.target());
  constexpr int kCalls = 20;
  std::vector<std::string> got(kCalls);
  absl::BlockingCounter left(kCalls);
  for (int i = 0; i < kCalls; ++i) {
    auto request = std::make_shared<v1::ProjectRequest>();
    request->set_activations(std::to_string(i));
    client->ProjectAsync(request, {},
                         [&, i](absl::StatusOr<v1::ProjectResponse> reply, const CallInfo& info) {
                           if (reply.ok() && info.attempts == 1) {
                             got[static_cast<size_t>(i)] = reply->outputs(0).data();
                           }
                           left.DecrementCount();
                         });
  }
  left.Wait();
  for (int i = 0; i < kCalls; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], std::to_string(i));
}

TEST(Client, CancelEndsACallInFlightAndOneThatWaitsToRetry) {
  FakeNode node;
  absl::Notification arrived;
  node.project = [&](grpc::ServerContext* context, const v1::ProjectRequest* request,
                     v1::ProjectResponse*) {
    if (request->call_id() == "retry") {
      return WithRetryInfo(grpc::StatusCode::RESOURCE_EXHAUSTED, "x", absl::Milliseconds(999));
    }
    arrived.Notify();
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  ClientOptions options;
  options.default_timeout = absl::Minutes(5);
  const auto client = *Client::Connect(node.target(), options);
  {
    absl::Notification finished;
    absl::Status status;
    auto call = client->ProjectAsync(std::make_shared<v1::ProjectRequest>(), {},
                                     [&](absl::StatusOr<v1::ProjectResponse> r, const CallInfo&) {
                                       status = r.status();
                                       finished.Notify();
                                     });
    arrived.WaitForNotification();
    call->Cancel();
    finished.WaitForNotification();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  }
  absl::Notification finished;
  absl::Status status;
  auto request = std::make_shared<v1::ProjectRequest>();
  request->set_call_id("retry");
  auto call = client->ProjectAsync(request, {},
                                   [&](absl::StatusOr<v1::ProjectResponse> r, const CallInfo&) {
                                     status = r.status();
                                     finished.Notify();
                                   });
  while (node.projects() < 2) std::this_thread::yield();
  call->Cancel();
  finished.WaitForNotification();
  // Cancelled before or after the node's answer came: both end the call without a third attempt.
  EXPECT_TRUE(status.code() == absl::StatusCode::kCancelled ||
              status.code() == absl::StatusCode::kResourceExhausted)
      << status;
  EXPECT_EQ(node.projects(), 2);
}

// The node's own end of a call is not the caller's: see retry_test.cc for the one it ends itself.
TEST(Client, ACallThatItsCallerCancelsTakesNoRetryFromTheBudget) {
  FakeNode node;
  std::atomic<bool> hold{true};
  node.project = [&](grpc::ServerContext* context, const v1::ProjectRequest*,
                     v1::ProjectResponse*) -> grpc::Status {
    while (hold && !context->IsCancelled()) std::this_thread::yield();
    if (hold) return grpc::Status::CANCELLED;
    return {grpc::StatusCode::UNAVAILABLE, "reset"};
  };
  ClientOptions options;
  options.retry.initial_backoff = absl::Microseconds(1);
  options.retry.budget_tokens = 1;
  const auto client = *Client::Connect(node.target(), options);
  absl::Notification finished;
  const auto call = client->ProjectAsync(
      std::make_shared<v1::ProjectRequest>(), {},
      [&](absl::StatusOr<v1::ProjectResponse>, const CallInfo&) { finished.Notify(); });
  while (node.projects() < 1) std::this_thread::yield();
  call->Cancel();
  finished.WaitForNotification();
  EXPECT_EQ(node.projects(), 1);
  hold = false;
  EXPECT_FALSE(client->Project({}).ok());
  EXPECT_EQ(node.projects(), 3);  // the one token was still there
}

TEST(Client, WatchEndsWhenTheCallerHasSeenEnough) {
  FakeNode node;
  for (int i = 1; i <= 5; ++i) {
    node.lever_events.emplace_back().set_epoch(static_cast<uint64_t>(i));
  }
  const auto client = *Client::Connect(node.target());
  std::vector<uint64_t> seen;
  EXPECT_TRUE(client
                  ->WatchLevers({},
                                [&](const v1::LeverEvent& event) {
                                  seen.push_back(event.epoch());
                                  return seen.size() < 3;
                                })
                  .ok());
  EXPECT_EQ(seen, (std::vector<uint64_t>{1, 2, 3}));
}

TEST(Client, Health) {
  FakeNode node;
  const auto client = *Client::Connect(node.target());
  const auto whole = client->CheckHealth("");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(*whole, "SERVING");
  EXPECT_EQ(client->CheckHealth("models/m/shards/none").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace fulcrum::client

// The pipelined stream: replies out of order, errors of single calls, back-pressure, and streams
// that break.
// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/project_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "absl/synchronization/notification.h"
#include "client/cpp/client.h"
#include "client/cpp/status.h"
#include "tests/client/support/fake_node.h"

namespace fulcrum::client {
namespace {

using ServerStream = grpc::ServerReaderWriter<v1::ProjectStreamResponse, v1::ProjectRequest>;

v1::ProjectStreamResponse Answer(const v1::ProjectRequest& request) {
  v1::ProjectStreamResponse reply;
  reply.set_call_id(request.call_id());
  reply.mutable_response()->set_call_id(request.call_id());
  reply.mutable_response()->add_outputs()->set_data(request.activations());
  return reply;
}

v1::ProjectRequest Request(const std::string& payload, const std::string& id = "") {
  v1::ProjectRequest request;
  request.set_call_id(id);
  request.set_activations(payload);
  return request;
}

// Reads everything that comes before the half-close, then answers last first.
grpc::Status Reversed(ServerStream* stream) {
  std::vector<v1::ProjectRequest> requests;
  v1::ProjectRequest request;
  while (stream->Read(&request)) requests.push_back(request);
  std::reverse(requests.begin(), requests.end());
  for (const auto& r : requests) stream->Write(Answer(r));
  return grpc::Status::OK;
}

TEST(ProjectStream, PairsOutOfOrderRepliesWithTheirCalls) {
  FakeNode node;
  node.stream = [](grpc::ServerContext*, ServerStream* stream) { return Reversed(stream); };
  const auto client = *Client::Connect(node.target());
  const auto stream = client->OpenStream();
  std::vector<std::string> order;  // callbacks run one at a time
  std::vector<std::string> payloads(20);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(stream
                    ->Send(Request(std::to_string(i)),
                           [&, i](ProjectStream::Result result) {
                             ASSERT_TRUE(result.ok()) << result.status();
                             payloads[static_cast<size_t>(i)] = result->outputs(0).data();
                             order.push_back(result->outputs(0).data());
                           })
                    .ok());
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(stream->in_flight(), 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(payloads[static_cast<size_t>(i)], std::to_string(i));
  ASSERT_EQ(order.size(), 20u);
  EXPECT_EQ(order.front(), "19");
  EXPECT_EQ(order.back(), "0");
}

TEST(ProjectStream, AFailedCallDoesNotEndTheStream) {
  FakeNode node;
  node.stream = [](grpc::ServerContext*, ServerStream* stream) {
    v1::ProjectRequest request;
    while (stream->Read(&request)) {
      v1::ProjectStreamResponse reply = Answer(request);
      if (request.activations() == "bad") {
        reply.mutable_error()->set_code(grpc::StatusCode::INVALID_ARGUMENT);
        reply.mutable_error()->set_message("rows: expected 1..32, got 0");
      }
      stream->Write(reply);
    }
    return grpc::Status::OK;
  };
  const auto client = *Client::Connect(node.target());
  const auto stream = client->OpenStream();
  auto first = stream->Send(Request("bad"));
  auto second = stream->Send(Request("good"));
  EXPECT_EQ(first.get().status().code(), absl::StatusCode::kInvalidArgument);
  const auto reply = second.get();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->outputs(0).data(), "good");
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(ProjectStream, BoundsCallsInFlightAndRefusesDuplicateIds) {
  FakeNode node;
  node.stream = [](grpc::ServerContext*, ServerStream* stream) { return Reversed(stream); };
  const auto client = *Client::Connect(node.target());
  StreamOptions options;
  options.max_in_flight = 2;
  const auto stream = client->OpenStream(options);
  int replies = 0;
  const auto count = [&](ProjectStream::Result) { ++replies; };
  EXPECT_TRUE(stream->TrySend(Request("a", "id"), count).ok());
  EXPECT_EQ(stream->TrySend(Request("b", "id"), count).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(stream->TrySend(Request("b", "other"), count).ok());
  EXPECT_EQ(stream->TrySend(Request("c"), count).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(stream->in_flight(), 2);
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(replies, 2);
  EXPECT_EQ(stream->TrySend(Request("d"), count).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ProjectStream, SendWaitsForRoomAndACallbackMaySendTheNext) {
  FakeNode node;
  std::atomic<int> most{0};
  node.stream = [&](grpc::ServerContext*, ServerStream* stream) {
    v1::ProjectRequest request;
    while (stream->Read(&request)) stream->Write(Answer(request));
    return grpc::Status::OK;
  };
  const auto client = *Client::Connect(node.target());
  StreamOptions options;
  options.max_in_flight = 3;
  const auto stream = client->OpenStream(options);
  std::atomic<int> replies{0};
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(stream
                    ->Send(Request("x"),
                           [&](ProjectStream::Result r) {
                             if (r.ok()) ++replies;
                           })
                    .ok());
    most = std::max(most.load(), stream->in_flight());
  }
  EXPECT_LE(most, 3);
  // A chain: each reply sends the next from its callback.
  absl::Notification end;
  int left = 50;
  std::function<void(ProjectStream::Result)> next = [&](ProjectStream::Result r) {
    ASSERT_TRUE(r.ok()) << r.status();
    if (--left == 0) return end.Notify();
    ASSERT_TRUE(stream->TrySend(Request("y"), next).ok());
  };
  ASSERT_TRUE(stream->Send(Request("y"), next).ok());
  end.WaitForNotification();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(replies, 200);
}

TEST(ProjectStream, ABrokenStreamFailsEveryCallInFlight) {
  FakeNode node;
  node.stream = [](grpc::ServerContext*, ServerStream* stream) {
    v1::ProjectRequest request;
    stream->Read(&request);
    stream->Read(&request);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  };
  const auto client = *Client::Connect(node.target());
  const auto stream = client->OpenStream();
  auto first = stream->Send(Request("a"));
  auto second = stream->Send(Request("b"));
  EXPECT_EQ(first.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(second.get().status().message(), "draining");
  EXPECT_EQ(stream->Finish().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(stream->Send(Request("c"), [](ProjectStream::Result) { FAIL(); }).ok());
}

TEST(ProjectStream, AStreamThatEndsWellStillOwesItsReplies) {
  FakeNode node;
  node.stream = [](grpc::ServerContext*, ServerStream* stream) {
    v1::ProjectRequest request;
    stream->Read(&request);
    return grpc::Status::OK;  // without an answer
  };
  const auto client = *Client::Connect(node.target());
  const auto stream = client->OpenStream();
  EXPECT_EQ(stream->Send(Request("a")).get().status().code(), absl::StatusCode::kUnavailable);
}

TEST(ProjectStream, DestructionCancelsWhatIsInFlight) {
  FakeNode node;
  node.stream = [](grpc::ServerContext* context, ServerStream* stream) {
    v1::ProjectRequest request;
    while (stream->Read(&request)) {
    }
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const auto client = *Client::Connect(node.target());
  absl::Status status;
  {
    const auto stream = client->OpenStream();
    ASSERT_TRUE(
        stream->Send(Request("a"), [&](ProjectStream::Result r) { status = r.status(); }).ok());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST(ProjectStream, AnUnreachableNodeIsEveryCallsStatus) {
  const auto client = *Client::Connect("127.0.0.1:1");
  const auto stream = client->OpenStream();
  EXPECT_EQ(stream->Send(Request("a")).get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Finish().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace fulcrum::client

// ProjectStream as callers see it: many calls in flight, errors that end one call only, bounds, and
// every way in which a stream ends.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_stream.h"

#include <map>
#include <thread>

#include "tests/service/support/test_server.h"

namespace fulcrum {
namespace {

using test::DetailOf;
using test::Eventually;

class StreamTest : public test::ServerTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::ProjectRequest, v1::ProjectStreamResponse>;

  struct Open {
    grpc::ClientContext context;
    std::unique_ptr<Stream> stream;
  };
  std::unique_ptr<Open> OpenStream() {
    auto open = std::make_unique<Open>();
    open->stream = stub_->ProjectStream(&open->context);
    return open;
  }
  static v1::ProjectRequest Numbered(int i, int rows = 1) {
    v1::ProjectRequest request = Request(rows, static_cast<float>(i % 100));
    request.set_call_id(std::to_string(i));
    return request;
  }
  static float Value(const v1::ProjectStreamResponse& response) {
    return First(response.response().outputs(0).data());
  }
  // The launch that holds the device's only slot.
  void Occupy(Stream& stream) {
    backend_->Hold();
    ASSERT_TRUE(stream.Write(Numbered(1000)));
    backend_->AwaitLaunches(1);
  }
};

TEST_F(StreamTest, RepliesAreMatchedByCallId) {
  Start(nullptr, 2);
  auto open = OpenStream();
  constexpr int kCalls = 300;
  std::thread writer([&] {
    for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(open->stream->Write(Numbered(i, 1 + i % 4)));
    open->stream->WritesDone();
  });
  std::map<std::string, float> got;
  v1::ProjectStreamResponse response;
  while (open->stream->Read(&response)) {
    ASSERT_TRUE(response.has_response()) << response.ShortDebugString();
    EXPECT_EQ(response.call_id(), response.response().call_id());
    EXPECT_TRUE(got.emplace(response.call_id(), Value(response)).second);
  }
  writer.join();
  EXPECT_TRUE(open->stream->Finish().ok());
  ASSERT_EQ(size_t{kCalls}, got.size());
  for (const auto& [id, value] : got) {
    EXPECT_EQ(static_cast<float>(std::stoi(id) % 100 + 5), value) << id;
  }
  AwaitIdle();
  EXPECT_EQ(kCalls, Metric("fulcrum_calls_total{code=\"OK\",method=\"ProjectStream\"}"));
}

TEST_F(StreamTest, AFailedCallDoesNotEndTheStream) {
  Start();
  auto open = OpenStream();
  v1::ProjectRequest bad = Numbered(1);
  bad.set_rows(40);
  v1::ProjectRequest unnamed = Request();
  ASSERT_TRUE(open->stream->Write(bad));
  v1::ProjectStreamResponse response;
  ASSERT_TRUE(open->stream->Read(&response));
  EXPECT_EQ("1", response.call_id());
  EXPECT_EQ(static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT), response.error().code());
  const auto detail = DetailOf<google::rpc::BadRequest>(response.error());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ("rows", detail->field_violations(0).field());
  ASSERT_TRUE(open->stream->Write(unnamed));
  ASSERT_TRUE(open->stream->Read(&response));
  EXPECT_EQ(static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT), response.error().code());
  ASSERT_TRUE(open->stream->Write(Numbered(2)));
  ASSERT_TRUE(open->stream->Read(&response));
  EXPECT_EQ(7.0f, Value(response));
  open->stream->WritesDone();
  EXPECT_FALSE(open->stream->Read(&response));
  EXPECT_TRUE(open->stream->Finish().ok());
}

TEST_F(StreamTest, AnIdInFlightIsRefusedAndFreeAfterItsReply) {
  Start();
  auto open = OpenStream();
  Occupy(*open->stream);
  ASSERT_TRUE(open->stream->Write(Numbered(1000)));
  v1::ProjectStreamResponse response;
  ASSERT_TRUE(open->stream->Read(&response));
  EXPECT_EQ("1000", response.call_id());
  EXPECT_EQ(static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT), response.error().code());
  backend_->Release();
  ASSERT_TRUE(open->stream->Read(&response));
  EXPECT_TRUE(response.has_response());
  ASSERT_TRUE(open->stream->Write(Numbered(1000)));
  ASSERT_TRUE(open->stream->Read(&response));
  EXPECT_TRUE(response.has_response());
  open->stream->WritesDone();
  EXPECT_TRUE(open->stream->Finish().ok());
}

TEST_F(StreamTest, CallsInFlightAreBoundedByNotReading) {
  Start([](service::Config& config) { config.limits.max_stream_calls = 4; });
  auto open = OpenStream();
  Occupy(*open->stream);
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(open->stream->Write(Numbered(i)));
    open->stream->WritesDone();
  });
  Eventually([this] { return server_->scheduler().queued_rows() == 3; }, "queued rows");
  writer.join();
  // The connection works on, the stream is not read on.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(1, Health(""));
  EXPECT_EQ(4, server_->scheduler().inflight_calls());
  backend_->Release();
  v1::ProjectStreamResponse response;
  int replies = 0;
  while (open->stream->Read(&response)) replies += response.has_response();
  EXPECT_EQ(21, replies);
  EXPECT_TRUE(open->stream->Finish().ok());
  for (const auto& ran : backend_->ran()) EXPECT_LE(ran.m, 4);
}

TEST_F(StreamTest, AReaderThatStopsIsHeldBackAndHurtsNobody) {
  Start([](service::Config& config) { config.limits.max_stream_calls = 8; });
  Load("models/m/shards/wide", 9, 20000);
  auto open = OpenStream();
  std::thread writer([&] {
    for (int i = 0; i < 200; ++i) {
      v1::ProjectRequest request = Numbered(i, 8);
      request.set_shards(0, "models/m/shards/wide");
      if (!open->stream->Write(request)) break;
    }
  });
  // Nothing is read here. The node answers what its bound allows, then reads no further; others are
  // served all the while.
  for (int i = 0; i < 50; ++i) ExpectServes();
  Eventually([this] { return Metric("fulcrum_inflight_calls") <= 8; }, "the others' end");
  open->context.TryCancel();
  writer.join();
  EXPECT_EQ(grpc::StatusCode::CANCELLED, open->stream->Finish().error_code());
  AwaitIdle();
}

TEST_F(StreamTest, HalfCloseDrainsWhatIsInFlight) {
  Start();
  auto open = OpenStream();
  Occupy(*open->stream);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(open->stream->Write(Numbered(i)));
  open->stream->WritesDone();
  Eventually([this] { return server_->scheduler().queued_rows() == 5; }, "queued rows");
  backend_->Release();
  v1::ProjectStreamResponse response;
  int replies = 0;
  while (open->stream->Read(&response)) replies += response.has_response();
  EXPECT_EQ(6, replies);
  EXPECT_TRUE(open->stream->Finish().ok());
}

TEST_F(StreamTest, ACancelledStreamLeavesNothingBehind) {
  Start();
  auto open = OpenStream();
  Occupy(*open->stream);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(open->stream->Write(Numbered(i)));
  Eventually([this] { return server_->scheduler().queued_rows() == 5; }, "queued rows");
  open->context.TryCancel();
  EXPECT_EQ(grpc::StatusCode::CANCELLED, open->stream->Finish().error_code());
  Eventually([this] { return server_->scheduler().queued_rows() == 0; }, "queued rows");
  backend_->Release();
  AwaitIdle();
  EXPECT_EQ(1u, backend_->ran().size());
  ExpectServes();
}

TEST_F(StreamTest, BytesThatAreNoMessageEndTheStream) {
  Start();
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  auto stream = stub.PrepareCall(&context, "/fulcrum.v1.ProjectionService/ProjectStream", &queue);
  stream->StartCall(nullptr);
  ASSERT_TRUE(next());
  stream->Write(test::Bytes("\x2a\xff garbage"), nullptr);
  ASSERT_TRUE(next());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  ASSERT_TRUE(next());
  EXPECT_EQ(grpc::StatusCode::INVALID_ARGUMENT, status.error_code());
  AwaitIdle();
}

TEST_F(StreamTest, StreamsCancelledAtRandomMoments) {
  Start(nullptr, 2);
  std::vector<std::thread> clients;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    clients.emplace_back([this, seed] {
      test::Rng random(seed);
      for (int round = 0; round < 25; ++round) {
        auto open = OpenStream();
        std::thread reader([&] {
          v1::ProjectStreamResponse response;
          while (open->stream->Read(&response)) {
          }
        });
        const int64_t calls = random.Below(30);
        for (int i = 0; i < calls; ++i) open->stream->Write(Numbered(i));
        if (random.Below(2) == 0) {
          open->context.TryCancel();
        } else {
          open->stream->WritesDone();
        }
        reader.join();
        open->stream->Finish();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  AwaitIdle();
  ExpectServes();
}

}  // namespace
}  // namespace fulcrum

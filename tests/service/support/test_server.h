// A whole node in the test's process, on a free port, over a device that the test holds and
// releases (tests/support/fake_backend.h), with what a test needs to call it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fulcrum/v1/projection_service.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "kernels/formats/bf16.h"
#include "scheduler/scheduler.h"
#include "scheduler/shard_store.h"
#include "service/health.h"
#include "service/metrics.h"
#include "service/server.h"
#include "tests/support/fake_backend.h"

namespace fulcrum::test {

// Waits for something that another thread is about to do; the test fails when it does not.
inline void Eventually(const std::function<bool()>& condition, const char* what) {
  const absl::Time limit = absl::Now() + absl::Seconds(60);
  while (!condition()) {
    ASSERT_LT(absl::Now(), limit) << what;
    std::this_thread::yield();
  }
}

// The detail of one type that a status carries.
template <class Message>
std::optional<Message> DetailOf(const google::rpc::Status& status) {
  for (const auto& any : status.details()) {
    Message message;
    if (any.UnpackTo(&message)) return message;
  }
  return std::nullopt;
}
template <class Message>
std::optional<Message> DetailOf(const grpc::Status& status) {
  google::rpc::Status wire;
  if (!wire.ParseFromString(status.error_details())) return std::nullopt;
  return DetailOf<Message>(wire);
}

inline std::string Bf16Rows(int rows, int k, float first) {
  std::vector<uint16_t> values(static_cast<size_t>(rows * k), 0);
  for (int row = 0; row < rows; ++row) {
    values[static_cast<size_t>(row * k)] = F32ToBf16(first);
  }
  return {reinterpret_cast<const char*>(values.data()), values.size() * 2};
}

inline grpc::ByteBuffer Bytes(const std::string& text) {
  grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}
inline std::string Text(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Valid() || !bytes.Dump(&slices).ok()) return {};
  std::string out;
  for (const auto& s : slices) out.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return out;
}

// A unary call of any method with raw bytes.
inline grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method, const std::string& request,
                            std::string* response = nullptr) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, method, Bytes(request), &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  if (response != nullptr) *response = Text(reply);
  return status;
}

class ServerTest : public ::testing::Test {
 protected:
  static constexpr int kK = 128, kN = 4;
  static constexpr char kShard[] = "models/m/shards/s";

  // Starts a node with one shard (tag 5: every output is the row's first activation plus 5).
  void Start(std::function<void(service::Config&)> change = nullptr, int slots = 1) {
    service::Config config;
    config.listen = "127.0.0.1:0";
    config.metrics_listen = "off";
    config.log_level = "error";
    config.levers["audit_rate"] = "0";  // the device computes nothing true
    if (change) change(config);
    service::ServerOptions options;
    options.log_descriptor = log_descriptor_;
    auto backend = std::make_unique<FakeBackend>(
        DeviceInfo{.id = "fake:0", .description = "fake", .caps = kAllCaps}, slots);
    backend_ = backend.get();
    options.backends.push_back(std::move(backend));
    options.on_failure = [this](const absl::Status& why) {
      absl::MutexLock lock(&failure_mu_);
      failure_ = why;
    };
    auto server = service::Server::Start(config, std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_TRUE(server_->WaitLoaded().ok());
    Load(kShard, 5);
    channel_ = NewChannel();
    stub_ = v1::ProjectionService::NewStub(channel_);
  }
  void Load(const std::string& name, int tag, int64_t n = kN, int64_t k = kK) {
    LoadRequest request;
    request.name = name;
    request.family = Family::kFfnDown;
    request.source = TaggedWeight(tag, n, k);
    const auto loaded = server_->shards().Load(request);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
  }
  ~ServerTest() override {
    if (backend_ != nullptr) backend_->Release();
    server_.reset();
  }

  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    return grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  static v1::ProjectRequest Request(int rows = 1, float first = 1) {
    v1::ProjectRequest request;
    request.add_shards(kShard);
    request.set_rows(rows);
    request.set_activations(Bf16Rows(rows, kK, first));
    return request;
  }
  grpc::Status Project(const v1::ProjectRequest& request, v1::ProjectResponse* response = nullptr) {
    grpc::ClientContext context;
    v1::ProjectResponse ignored;
    return stub_->Project(&context, request, response == nullptr ? &ignored : response);
  }
  void ExpectServes() {
    v1::ProjectResponse response;
    const grpc::Status status = Project(Request(2, 3), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(8.0f, First(response.outputs(0).data()));
  }
  static float First(const std::string& data) {
    uint16_t bits;
    std::memcpy(&bits, data.data(), sizeof(bits));
    return Bf16ToF32(bits);
  }
  // All calls were answered and nothing of them is left.
  void AwaitIdle() {
    Eventually([this] { return server_->scheduler().inflight_calls() == 0; }, "calls in flight");
    Eventually([this] { return Metric("fulcrum_inflight_calls") == 0; }, "inflight_calls");
  }
  // Value of a series by its exact text before the value.
  double Metric(const std::string& series) const {
    const std::string text = "\n" + server_->metrics().Text();
    const size_t at = text.find("\n" + series + " ");
    if (at == std::string::npos) return -1;
    return std::strtod(text.c_str() + at + series.size() + 2, nullptr);
  }
  // grpc.health.v1: 1 serving, 2 not serving; an error code below zero.
  int Health(const std::string& name) const {
    std::string request, response;
    if (!name.empty()) request = std::string("\x0a") + static_cast<char>(name.size()) + name;
    const grpc::Status status =
        RawCall(NewChannel(), "/grpc.health.v1.Health/Check", request, &response);
    if (!status.ok()) return -static_cast<int>(status.error_code());
    return response.size() == 2 ? response[1] : 0;
  }
  absl::Status failure() {
    absl::MutexLock lock(&failure_mu_);
    return failure_;
  }

  int log_descriptor_ = 2;
  FakeBackend* backend_ = nullptr;  // the server's
  absl::Mutex failure_mu_;
  absl::Status failure_ ABSL_GUARDED_BY(failure_mu_);
  std::unique_ptr<service::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ProjectionService::Stub> stub_;
};

}  // namespace fulcrum::test

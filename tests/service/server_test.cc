// A node's life: start and its errors, health through load, drain and faults, hostile connections,
// and a stop that is bounded and loses no accepted call.
// SPDX-License-Identifier: Apache-2.0
#include "service/server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "kernels/numerics/oracle.h"
#include "tests/service/support/test_server.h"
#include "tests/support/weight_files.h"

namespace fulcrum {
namespace {

using test::Eventually;

int Connect(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(0, ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)));
  return fd;
}

std::string Exchange(int port, const std::string& send) {
  const int fd = Connect(port);
  EXPECT_EQ(static_cast<ssize_t>(send.size()), ::send(fd, send.data(), send.size(), MSG_NOSIGNAL));
  ::shutdown(fd, SHUT_WR);
  std::string got;
  char buffer[65536];
  for (ssize_t n; (n = ::recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
    got.append(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  return got;
}

service::Config Quiet() {
  service::Config config;
  config.listen = "127.0.0.1:0";
  config.metrics_listen = "off";
  config.log_level = "error";
  config.backend = "cpu";
  config.cpu_threads = 1;
  return config;
}

class NodeLifeTest : public test::ServerTest {};

TEST_F(NodeLifeTest, HealthFollowsTheShards) {
  Start();
  EXPECT_EQ(1, Health(""));
  EXPECT_EQ(1, Health("fulcrum.v1.ProjectionService"));
  EXPECT_EQ(1, Health(kShard));
  EXPECT_EQ(-static_cast<int>(grpc::StatusCode::NOT_FOUND), Health("models/m/shards/none"));
  ASSERT_TRUE(server_->shards().Unload(kShard, absl::InfiniteDuration()).ok());
  EXPECT_EQ(2, Health(kShard));
  EXPECT_EQ(1, Health(""));
}

TEST_F(NodeLifeTest, ALoadingShardDoesNotTakeTheNodeDown) {
  Start();
  // A source that waits while it is read.
  class Slow : public test::MemoryWeight {
   public:
    Slow() : MemoryWeight(test::RandomFp8(4, 128, test::WeightKind::kGaussian, 7)) {}
    absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
      {
        absl::MutexLock lock(&mu);
        entered = true;
        while (!go) changed.Wait(&mu);
      }
      return MemoryWeight::ReadRows(row, count, out);
    }
    mutable absl::Mutex mu;
    mutable absl::CondVar changed;
    mutable bool entered ABSL_GUARDED_BY(mu) = false;
    bool go ABSL_GUARDED_BY(mu) = false;
  };
  const auto slow = std::make_shared<Slow>();
  std::thread loader([&] {
    LoadRequest request;
    request.name = "models/m/shards/slow";
    request.source = slow;
    EXPECT_TRUE(server_->shards().Load(request).ok());
  });
  Eventually(
      [&] {
        absl::MutexLock lock(&slow->mu);
        return slow->entered;
      },
      "the load");
  EXPECT_EQ(1, Health(""));
  EXPECT_EQ(1, Health(kShard));
  EXPECT_EQ(2, Health("models/m/shards/slow"));
  v1::ProjectRequest request = Request();
  request.set_shards(0, "models/m/shards/slow");
  EXPECT_EQ(grpc::StatusCode::FAILED_PRECONDITION, Project(request).error_code());
  {
    absl::MutexLock lock(&slow->mu);
    slow->go = true;
    slow->changed.SignalAll();
  }
  loader.join();
  EXPECT_EQ(1, Health("models/m/shards/slow"));
}

TEST_F(NodeLifeTest, StrayBytesHurtNobody) {
  Start();
  std::string random;
  test::Rng rng(1);
  for (int i = 0; i < 1024; ++i) random.push_back(static_cast<char>(rng.Next()));
  const std::string tls_hello("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03", 10);
  for (int round = 0; round < 5; ++round) {
    for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), random,
                                     tls_hello, std::string(), std::string(100000, '\0')}) {
      const int fd = Connect(server_->port());
      // The peer may close before all is sent.
      (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ::close(fd);
    }
    ExpectServes();
  }
}

TEST_F(NodeLifeTest, MetricsAreServedOverHttp) {
  Start([](service::Config& config) { config.metrics_listen = "127.0.0.1:0"; });
  ExpectServes();
  const std::string page = Exchange(
      server_->metrics_port(), "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(std::string::npos, page.find("200 OK"));
  EXPECT_NE(std::string::npos, page.find("fulcrum_calls_total{code=\"OK\",method=\"Project\"} 1"));
  EXPECT_NE(std::string::npos, page.find("fulcrum_stage_seconds_bucket"));
  const std::string other = Exchange(
      server_->metrics_port(), "GET /etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(std::string::npos, other.find("404"));
}

// More idle connections than the HTTP server has threads; all stay open.
TEST_F(NodeLifeTest, IdleConnectionsDoNotKeepScrapersOut) {
  Start([](service::Config& config) { config.metrics_listen = "127.0.0.1:0"; });
  std::vector<int> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(Connect(server_->metrics_port()));
  const int fd = Connect(server_->metrics_port());
  const timeval patience{.tv_sec = 20, .tv_usec = 0};  // the server's own is 2 s
  ASSERT_EQ(0, ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)));
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_EQ(static_cast<ssize_t>(request.size()),
            ::send(fd, request.data(), request.size(), MSG_NOSIGNAL));
  char first[12] = {};
  EXPECT_EQ(static_cast<ssize_t>(sizeof(first)), ::recv(fd, first, sizeof(first), MSG_WAITALL));
  EXPECT_EQ("HTTP/1.1 200", std::string(first, sizeof(first)));
  ::close(fd);
  for (int each : idle) ::close(each);
}

TEST_F(NodeLifeTest, ADrainFinishesAcceptedCallsAndRefusesNewOnes) {
  Start();
  backend_->Hold();
  v1::ProjectResponse response;
  grpc::Status accepted;
  std::thread caller([&] { accepted = Project(Request(), &response); });
  backend_->AwaitLaunches(1);
  std::thread stopper([this] { server_->Shutdown(absl::Seconds(60)); });
  Eventually([this] { return server_->health().draining(); }, "the drain");
  EXPECT_EQ(2, Health(""));
  EXPECT_EQ(2, Health(kShard));
  EXPECT_EQ(grpc::StatusCode::UNAVAILABLE, Project(Request()).error_code());
  v1::ProjectRequest unknown = Request();
  unknown.set_shards(0, "models/m/shards/none");
  EXPECT_EQ(grpc::StatusCode::UNAVAILABLE, Project(unknown).error_code());
  backend_->Release();
  caller.join();
  stopper.join();
  EXPECT_TRUE(accepted.ok()) << accepted.error_message();
  EXPECT_EQ(6.0f, First(response.outputs(0).data()));
}

TEST_F(NodeLifeTest, IdleStreamsEndWithUnavailable) {
  Start();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<
      std::unique_ptr<grpc::ClientReaderWriter<v1::ProjectRequest, v1::ProjectStreamResponse>>>
      streams;
  for (int i = 0; i < 10; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub_->ProjectStream(contexts.back().get()));
    streams.back()->WaitForInitialMetadata();
  }
  const absl::Time begin = absl::Now();
  server_->Shutdown(absl::Seconds(60));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  v1::ProjectStreamResponse response;
  for (auto& stream : streams) {
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(grpc::StatusCode::UNAVAILABLE, stream->Finish().error_code());
  }
}

TEST_F(NodeLifeTest, AStreamWithCallsInFlightAnswersThemBeforeItEnds) {
  Start();
  grpc::ClientContext context;
  auto stream = stub_->ProjectStream(&context);
  backend_->Hold();
  v1::ProjectRequest request = Request();
  request.set_call_id("a");
  ASSERT_TRUE(stream->Write(request));
  backend_->AwaitLaunches(1);
  std::thread stopper([this] { server_->Shutdown(absl::Seconds(60)); });
  Eventually([this] { return server_->health().draining(); }, "the drain");
  backend_->Release();
  v1::ProjectStreamResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_response());
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(grpc::StatusCode::UNAVAILABLE, stream->Finish().error_code());
  stopper.join();
}

TEST_F(NodeLifeTest, StartAndStopUnderLoad) {
  for (int round = 0; round < 8; ++round) {
    Start(nullptr, 2);
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) {
      callers.emplace_back([&] {
        // As a client with another node to go to: until it is told to leave.
        for (;;) {
          const grpc::Status status = Project(Request());
          if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return;
          ASSERT_TRUE(status.ok()) << status.error_code() << status.error_message();
        }
      });
    }
    Eventually([this] { return backend_->ran().size() > 20; }, "launches");
    server_->Shutdown(absl::Seconds(60));
    for (std::thread& caller : callers) caller.join();
    backend_ = nullptr;
    server_.reset();
  }
}

// Clients that never back off and have nowhere else to go: none of their calls may be reset.
TEST_F(NodeLifeTest, AStopTellsHammeringCallersUnavailableAndNothingElse) {
  for (int round = 0; round < 8; ++round) {
    Start(nullptr, 2);
    std::atomic<bool> stopped = false;
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i) {
      callers.emplace_back([&] {
        const auto stub = v1::ProjectionService::NewStub(NewChannel());
        while (!stopped) {
          grpc::ClientContext context;
          v1::ProjectResponse response;
          const grpc::Status status = stub->Project(&context, Request(), &response);
          if (!status.ok()) {
            ASSERT_EQ(grpc::StatusCode::UNAVAILABLE, status.error_code()) << status.error_message();
          }
        }
      });
    }
    Eventually([this] { return backend_->ran().size() > 20; }, "launches");
    server_->Shutdown(absl::Seconds(60));
    stopped = true;
    for (std::thread& caller : callers) caller.join();
    backend_ = nullptr;
    server_.reset();
  }
}

TEST_F(NodeLifeTest, WrongBitsStopTheDeviceWhenConfigured) {
  Start([](service::Config& config) {
    config.audit.stop_device_on_mismatch = true;
    config.audit.scrub = absl::Milliseconds(20);
  });
  ExpectServes();
  ASSERT_TRUE((*server_->shards().Find(kShard))->weight->FlipBit(100, 3).ok());
  Eventually([this] { return Health("") == 2; }, "the scrub");
  EXPECT_EQ(2, Health(kShard));
  EXPECT_EQ(grpc::StatusCode::UNAVAILABLE, Project(Request()).error_code());
  EXPECT_GE(Metric("fulcrum_incidents_total{what=\"scrub\"}"), 1);
  EXPECT_TRUE(failure().ok());  // an operator looks at it; the process goes on
}

TEST(ServerStart, ErrorsAreOneClearSentence) {
  auto first = service::Server::Start(Quiet(), {});
  ASSERT_TRUE(first.ok()) << first.status();
  service::Config taken = Quiet();
  taken.listen = (*first)->address();
  const auto second = service::Server::Start(taken, {});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(absl::string_view::npos, second.status().message().find(taken.listen))
      << second.status();

  service::Config open = Quiet();
  open.listen = "0.0.0.0:0";
  const auto insecure = service::Server::Start(open, {});
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, insecure.status().code()) << insecure.status();
  open.allow_insecure_bind = true;
  EXPECT_TRUE(service::Server::Start(open, {}).ok());

  service::Config metrics = Quiet();
  metrics.metrics_listen = (*first)->address();
  const auto busy = service::Server::Start(metrics, {});
  ASSERT_FALSE(busy.ok());
  EXPECT_NE(absl::string_view::npos, busy.status().message().find("metrics_listen"));
}

service::Config WithShard(const std::string& path, const std::string& tensor) {
  service::Config config = Quiet();
  config.models = {
      {.model = "m",
       .source = std::vector<service::ExplicitShardConfig>{
           {.name = "s", .path = path, .tensor = tensor, .device = {}, .expect_hash = {}}}}};
  return config;
}

TEST(ServerStart, AShardThatHeadersRefuseIsAStartThatFails) {
  const auto server = service::Server::Start(
      WithShard(FULCRUM_TEST_DATA "/q2_0/mainline.gguf", "no.such.tensor"), {});
  EXPECT_TRUE(absl::IsInvalidArgument(server.status())) << server.status();
  EXPECT_NE(absl::string_view::npos, server.status().message().find("no.such.tensor"));
}

TEST(ServerStart, AShardThatDoesNotLoadIsAFailureOfTheNode) {
  const test::TempDir dir;
  const service::Config config = WithShard(
      dir.Write("w.safetensors", test::SafetensorsBuilder()
                                     .Add("w.weight", "BF16", {2, 2}, std::string(8, '\xff'))
                                     .Build()),
      "w.weight");
  absl::Mutex mu;
  absl::Status why;
  service::ServerOptions options;
  options.on_failure = [&](const absl::Status& status) {
    absl::MutexLock lock(&mu);
    why = status;
  };
  const auto server = service::Server::Start(config, std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  const absl::Status loaded = (*server)->WaitLoaded();
  EXPECT_FALSE(loaded.ok());
  EXPECT_NE(absl::string_view::npos, loaded.message().find("NaN")) << loaded;
  EXPECT_FALSE((*server)->health().serving());
  absl::MutexLock lock(&mu);
  EXPECT_EQ(loaded.code(), why.code());
}

TEST(ServerOnCpu, ServesSyntheticWeightsBitForBit) {
  service::Config config = Quiet();
  config.models = {{.model = "small", .source = service::SyntheticName{"small"}}};
  const auto server = service::Server::Start(config, {});
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE((*server)->WaitLoaded().ok()) << (*server)->WaitLoaded();
  const auto stub = v1::ProjectionService::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  test::Rng rng(3);
  constexpr int kRows = 3;
  const auto shards = (*server)->shards().Serving();
  ASSERT_GT(shards.size(), 5u);
  for (const auto& shard : shards) {
    std::vector<uint16_t> x(static_cast<size_t>(kRows * shard->k()));
    for (uint16_t& v : x) v = F32ToBf16(static_cast<float>(rng.Gauss()));
    v1::ProjectRequest request;
    request.add_shards(shard->name);
    request.set_rows(kRows);
    request.set_policy(v1::POLICY_EXACT);
    request.set_output_type(v1::DTYPE_F32);
    request.set_activations(x.data(), x.size() * 2);
    grpc::ClientContext context;
    v1::ProjectResponse response;
    const grpc::Status status = stub->Project(&context, request, &response);
    ASSERT_TRUE(status.ok()) << shard->name << status.error_message();
    const int64_t n = std::min<int64_t>(shard->n(), 40);
    std::vector<float> want(static_cast<size_t>(kRows * n));
    ASSERT_TRUE(
        numerics::ReferenceProduct(NumericsClass::kExact, *shard->source, 0, n, x, kRows, want)
            .ok());
    for (int row = 0; row < kRows; ++row) {
      EXPECT_EQ(0, std::memcmp(want.data() + row * n,
                               response.outputs(0).data().data() + row * shard->n() * 4,
                               static_cast<size_t>(n) * 4))
          << shard->name << " row " << row;
    }
  }
}

}  // namespace
}  // namespace fulcrum

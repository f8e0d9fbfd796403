// Project as callers see it: right values, every wrong request refused with a typed status before
// anything runs, bounds, deadlines, cancellation and faults.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_service.h"

#include <limits>
#include <thread>

#include "tests/service/support/test_server.h"

namespace fulcrum {
namespace {

using test::DetailOf;
using test::Eventually;

class ProjectTest : public test::ServerTest {
 protected:
  // A call on a thread of its own, for tests that hold the device.
  struct Pending {
    explicit Pending(std::unique_ptr<grpc::ClientContext> c) : context(std::move(c)) {}
    ~Pending() {
      if (thread.joinable()) thread.join();
    }
    std::unique_ptr<grpc::ClientContext> context;
    v1::ProjectResponse response;
    grpc::Status status;
    std::thread thread;
  };
  std::unique_ptr<Pending> Async(const v1::ProjectRequest& request,
                                 std::optional<absl::Duration> timeout = std::nullopt) {
    auto context = std::make_unique<grpc::ClientContext>();
    if (timeout) context->set_deadline(absl::ToChronoTime(absl::Now() + *timeout));
    auto pending = std::make_unique<Pending>(std::move(context));
    pending->thread = std::thread([this, request, p = pending.get()] {
      p->status = stub_->Project(p->context.get(), request, &p->response);
    });
    return pending;
  }
  // Keeps the only slot busy, so that further calls wait.
  std::unique_ptr<Pending> Occupy() {
    backend_->Hold();
    auto pending = Async(Request());
    backend_->AwaitLaunches(1);
    return pending;
  }
};

TEST_F(ProjectTest, AnswersSayWhatComputedThem) {
  Start();
  v1::ProjectRequest request = Request(3, 2);
  request.set_call_id("call-7");
  grpc::ClientContext context;
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  context.AddMetadata("traceparent", trace);
  context.AddMetadata("tracestate", "vendor=1");
  v1::ProjectResponse response;
  const grpc::Status status = stub_->Project(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ("call-7", response.call_id());
  ASSERT_EQ(1, response.outputs_size());
  const v1::ShardOutput& output = response.outputs(0);
  EXPECT_EQ(kShard, output.shard());
  EXPECT_EQ(kN, output.n());
  EXPECT_EQ(size_t{3 * kN * 2}, output.data().size());
  EXPECT_EQ(7.0f, First(output.data()));
  EXPECT_EQ(1u, output.version());
  EXPECT_EQ(64u, output.hash().size());
  EXPECT_EQ(v1::NUMERICS_CLASS_EXACT, output.numerics());
  EXPECT_EQ(backend_->ran().front().arms.front(), output.arm());
  EXPECT_EQ(3, response.provenance().batch_rows());
  EXPECT_EQ(1u, response.provenance().lever_epoch());
  EXPECT_EQ(v1::CLOSE_REASON_DEVICE_IDLE, response.provenance().close_reason());
  EXPECT_EQ(server_->node_id(), response.provenance().node());
  EXPECT_EQ("fake:0", response.provenance().device());
  EXPECT_GT(response.provenance().stages().admit(), 0);
  EXPECT_EQ(2e-6, response.provenance().stages().kernel());
  const auto& metadata = context.GetServerInitialMetadata();
  EXPECT_EQ("call-7", metadata.find("x-fulcrum-call-id")->second);
  EXPECT_EQ(trace, metadata.find("traceparent")->second);
  EXPECT_EQ("vendor=1", metadata.find("tracestate")->second);
}

TEST_F(ProjectTest, CallIdsComeFromTheRequestThenMetadataThenTheNode) {
  Start();
  v1::ProjectResponse response;
  grpc::ClientContext context;
  context.AddMetadata("x-fulcrum-call-id", "from metadata");
  ASSERT_TRUE(stub_->Project(&context, Request(), &response).ok());
  EXPECT_EQ("from metadata", response.call_id());
  ASSERT_TRUE(Project(Request(), &response).ok());
  EXPECT_EQ(0u, response.call_id().find(server_->node_id() + "-"));
  // An id that metadata cannot carry comes back in the message, and ends nothing.
  v1::ProjectRequest request = Request();
  request.set_call_id("caf\xc3\xa9\n");
  ASSERT_TRUE(Project(request, &response).ok());
  EXPECT_EQ(request.call_id(), response.call_id());
  grpc::ClientContext bad_trace;
  bad_trace.AddMetadata("traceparent", "00-zz");
  ASSERT_TRUE(stub_->Project(&bad_trace, Request(), &response).ok());
  EXPECT_EQ(0u, bad_trace.GetServerInitialMetadata().count("traceparent"));
}

TEST_F(ProjectTest, TypesAndPitches) {
  Start();
  v1::ProjectResponse response;
  // F32 in, pitched rows with garbage in the gap, F32 out with a pitch whose gap is zero.
  std::vector<float> values(kK + 3 + kK, 99.0f);
  values[0] = 1.5f;
  values[kK + 3] = 2.5f;
  v1::ProjectRequest request = Request(2);
  request.set_activation_type(v1::DTYPE_F32);
  request.set_activation_pitch(kK + 3);
  request.set_activations(values.data(), values.size() * 4);
  request.set_output_type(v1::DTYPE_F32);
  request.set_output_pitch(kN + 2);
  ASSERT_TRUE(Project(request, &response).ok());
  std::vector<float> out(2 * (kN + 2));
  ASSERT_EQ(out.size() * 4, response.outputs(0).data().size());
  std::memcpy(out.data(), response.outputs(0).data().data(), out.size() * 4);
  EXPECT_EQ((std::vector<float>{6.5, 6.5, 6.5, 6.5, 0, 0, 7.5, 7.5, 7.5, 7.5, 0, 0}), out);
  // The last row may have its gap as well.
  values.resize(2 * (kK + 3));
  request.set_activations(values.data(), values.size() * 4);
  EXPECT_TRUE(Project(request).ok());
  // F16 in.
  std::vector<uint16_t> half(kK, 0);
  half[0] = F32ToF16(0.5f);
  request = Request();
  request.set_activation_type(v1::DTYPE_F16);
  request.set_activations(half.data(), half.size() * 2);
  ASSERT_TRUE(Project(request, &response).ok());
  EXPECT_EQ(5.5f, First(response.outputs(0).data()));
}

TEST_F(ProjectTest, OneCallNamesSeveralShardsAndOneTwice) {
  Start();
  Load("models/m/shards/t", 20, 6);
  v1::ProjectRequest request = Request(1, 1);
  request.add_shards("models/m/shards/t");
  request.add_shards(kShard);
  v1::ProjectResponse response;
  ASSERT_TRUE(Project(request, &response).ok());
  ASSERT_EQ(3, response.outputs_size());
  EXPECT_EQ(6.0f, First(response.outputs(0).data()));
  EXPECT_EQ(21.0f, First(response.outputs(1).data()));
  EXPECT_EQ(6, response.outputs(1).n());
  EXPECT_EQ(response.outputs(0).data(), response.outputs(2).data());
  EXPECT_EQ(1u, backend_->ran().size());
}

TEST_F(ProjectTest, WrongFieldsAreNamedAndNothingRuns) {
  Start();
  Load("models/m/shards/wide", 7, kN, 256);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  using Change = std::function<void(v1::ProjectRequest&)>;
  const auto dtype = [](int n) { return static_cast<v1::DType>(n); };
  const std::vector<std::pair<const char*, Change>> cases = {
      {"activation_type", [&](auto& r) { r.set_activation_type(dtype(99)); }},
      {"activation_type", [&](auto& r) { r.set_activation_type(dtype(0x7fffffff)); }},
      {"activation_type", [&](auto& r) { r.set_activation_type(dtype(-1)); }},
      {"output_type", [&](auto& r) { r.set_output_type(dtype(99)); }},
      {"output_type", [](auto& r) { r.set_output_type(v1::DTYPE_F16); }},
      {"step", [](auto& r) { r.set_step(static_cast<v1::Step>(3)); }},
      {"policy", [](auto& r) { r.set_policy(static_cast<v1::Policy>(-4)); }},
      {"rows", [](auto& r) { r.set_rows(0); }},
      {"rows", [](auto& r) { r.set_rows(-1); }},
      {"rows", [](auto& r) { r.set_rows(33); }},
      {"rows", [](auto& r) { r.set_rows(kMax); }},
      {"rows", [](auto& r) { r.set_step(v1::STEP_PREFILL), r.set_rows(2049); }},
      {"activations", [](auto& r) { r.clear_activations(); }},
      {"activations", [](auto& r) { r.set_rows(2); }},
      {"activations", [](auto& r) { r.mutable_activations()->pop_back(); }},
      {"activations", [](auto& r) { r.mutable_activations()->push_back(0); }},
      {"activations", [](auto& r) { r.set_activation_type(v1::DTYPE_F32); }},
      // K padded to a device's alignment is not the logical K.
      {"activations", [](auto& r) { r.set_activations(std::string(2 * 192, '\0')); }},
      {"activations", [](auto& r) { r.set_rows(2), r.set_activation_pitch(kMax / 2); }},
      {"activation_pitch", [](auto& r) { r.set_activation_pitch(kK - 1); }},
      {"activation_pitch", [](auto& r) { r.set_activation_pitch(-kMax); }},
      {"output_pitch", [](auto& r) { r.set_output_pitch(kN - 1); }},
      {"output_pitch", [](auto& r) { r.set_output_pitch(-1); }},
      {"output_pitch", [](auto& r) { r.set_output_pitch(16 * kN + 1); }},
      {"output_pitch", [](auto& r) { r.set_output_pitch(kMax); }},
      {"shards", [](auto& r) { r.clear_shards(); }},
      {"shards",
       [](auto& r) {
         for (int i = 0; i < 16; ++i) r.add_shards(kShard);
       }},
      {"shards[1]", [](auto& r) { r.add_shards(""); }},
      {"shards[1]", [](auto& r) { r.add_shards("models/m/shards/wide"); }},
      {"call_id", [](auto& r) { r.set_call_id(std::string(129, 'x')); }},
  };
  for (const auto& [field, change] : cases) {
    v1::ProjectRequest request = Request();
    change(request);
    const grpc::Status status = Project(request);
    EXPECT_EQ(grpc::StatusCode::INVALID_ARGUMENT, status.error_code()) << field;
    const auto detail = DetailOf<google::rpc::BadRequest>(status);
    ASSERT_TRUE(detail.has_value()) << field;
    EXPECT_EQ(field, detail->field_violations(0).field()) << status.error_message();
    EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  }
  EXPECT_TRUE(backend_->ran().empty());
  ExpectServes();
  // Limits are in the details (here 32 and 2048).
  v1::ProjectRequest request = Request();
  request.set_rows(64);
  EXPECT_NE(std::string::npos, Project(request).error_message().find("1..32"));
}

TEST_F(ProjectTest, ErrorsOfLengthSayExpectedAndGot) {
  Start();
  v1::ProjectRequest request = Request(2);
  request.mutable_activations()->resize(300);
  const std::string message = Project(request).error_message();
  EXPECT_NE(std::string::npos, message.find("expected 512 bytes")) << message;
  EXPECT_NE(std::string::npos, message.find("got 300")) << message;
}

TEST_F(ProjectTest, UnknownAndDrainingShardsAreTyped) {
  Start();
  v1::ProjectRequest request = Request();
  request.set_shards(0, "models/m/shards/none");
  grpc::Status status = Project(request);
  EXPECT_EQ(grpc::StatusCode::NOT_FOUND, status.error_code());
  const auto resource = DetailOf<google::rpc::ResourceInfo>(status);
  ASSERT_TRUE(resource.has_value());
  EXPECT_EQ("shard", resource->resource_type());
  EXPECT_EQ("models/m/shards/none", resource->resource_name());

  const auto occupier = Occupy();
  EXPECT_TRUE(absl::IsDeadlineExceeded(server_->shards().Unload(kShard, absl::ZeroDuration())));
  status = Project(Request());
  EXPECT_EQ(grpc::StatusCode::FAILED_PRECONDITION, status.error_code());
  const auto failure = DetailOf<google::rpc::PreconditionFailure>(status);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ("SHARD_STATE", failure->violations(0).type());
  EXPECT_EQ(kShard, failure->violations(0).subject());
  backend_->Release();
  occupier->thread.join();
  EXPECT_TRUE(occupier->status.ok());
}

TEST_F(ProjectTest, AReplyTooLargeSaysTheNeededSizeAndNotToRetry) {
  Start([](service::Config& config) { config.limits.max_message_bytes = 1 << 20; });
  Load("models/m/shards/head", 9, 20000);
  v1::ProjectRequest request = Request(32);
  request.set_shards(0, "models/m/shards/head");
  const grpc::Status status = Project(request);
  EXPECT_EQ(grpc::StatusCode::RESOURCE_EXHAUSTED, status.error_code());
  EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  const auto info = DetailOf<google::rpc::ErrorInfo>(status);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ("REPLY_TOO_LARGE", info->reason());
  EXPECT_GE(std::stoll(info->metadata().at("needed_bytes")), 32 * 20000 * 2);
  EXPECT_EQ("1048576", info->metadata().at("limit_bytes"));
  request = Request(8);
  request.set_shards(0, "models/m/shards/head");
  EXPECT_TRUE(Project(request).ok());
}

TEST_F(ProjectTest, AFullQueueSaysWhenToRetry) {
  Start([](service::Config& config) {
    config.limits.max_queue_rows = 32;
    config.limits.max_prefill_rows = 32;
  });
  const auto occupier = Occupy();
  const auto waiting = Async(Request(32));
  Eventually([this] { return server_->scheduler().queued_rows() == 32; }, "queued rows");
  const grpc::Status status = Project(Request(1));
  EXPECT_EQ(grpc::StatusCode::RESOURCE_EXHAUSTED, status.error_code());
  const auto retry = DetailOf<google::rpc::RetryInfo>(status);
  ASSERT_TRUE(retry.has_value());
  EXPECT_GT(retry->retry_delay().nanos(), 0);
  EXPECT_EQ(1, Metric("fulcrum_rejections_total{reason=\"queue_rows\"}"));
  backend_->Release();
}

TEST_F(ProjectTest, WaitingRowsShareTheNextLaunch) {
  Start();
  {
    const auto occupier = Occupy();
    std::vector<std::unique_ptr<Pending>> waiting;
    for (int i = 0; i < 4; ++i) waiting.push_back(Async(Request(1, static_cast<float>(i))));
    Eventually([this] { return server_->scheduler().queued_rows() == 4; }, "queued rows");
    backend_->Release();
    for (int i = 0; i < 4; ++i) {
      waiting[static_cast<size_t>(i)]->thread.join();
      const Pending& call = *waiting[static_cast<size_t>(i)];
      ASSERT_TRUE(call.status.ok()) << call.status.error_message();
      EXPECT_EQ(5.0f + static_cast<float>(i), First(call.response.outputs(0).data()));
      EXPECT_EQ(4, call.response.provenance().batch_rows());
    }
  }
  const auto ran = backend_->ran();
  ASSERT_EQ(2u, ran.size());
  EXPECT_EQ(4, ran[1].m);
  AwaitIdle();
  EXPECT_EQ(5, Metric("fulcrum_calls_total{code=\"OK\",method=\"Project\"}"));
}

TEST_F(ProjectTest, ExpiredCallsNeverRun) {
  Start();
  {
    const auto occupier = Occupy();
    const auto late = Async(Request(), absl::Milliseconds(30));
    late->thread.join();
    EXPECT_EQ(grpc::StatusCode::DEADLINE_EXCEEDED, late->status.error_code());
    Eventually([this] { return server_->scheduler().queued_rows() == 0; }, "queued rows");
    backend_->Release();
  }
  AwaitIdle();
  EXPECT_EQ(1u, backend_->ran().size());
  EXPECT_EQ(1, Metric("fulcrum_calls_total{code=\"DEADLINE_EXCEEDED\",method=\"Project\"}"));
}

TEST_F(ProjectTest, CancelledCallsLeaveTheQueue) {
  Start();
  {
    const auto occupier = Occupy();
    const auto waiting = Async(Request());
    Eventually([this] { return server_->scheduler().queued_rows() == 1; }, "queued rows");
    waiting->context->TryCancel();
    waiting->thread.join();
    EXPECT_EQ(grpc::StatusCode::CANCELLED, waiting->status.error_code());
    Eventually([this] { return server_->scheduler().queued_rows() == 0; }, "queued rows");
    // One that a launch holds already: cancelled for the client, completed unseen by the node.
    occupier->context->TryCancel();
    occupier->thread.join();
    backend_->Release();
  }
  AwaitIdle();
  EXPECT_EQ(1u, backend_->ran().size());
  ExpectServes();
}

TEST_F(ProjectTest, CancelsAtRandomMomentsLeaveNothingBehind) {
  Start(nullptr, 2);
  std::vector<std::thread> callers;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    callers.emplace_back([this, seed] {
      test::Rng random(seed);
      for (int i = 0; i < 150; ++i) {
        grpc::ClientContext context;
        grpc::CompletionQueue queue;
        auto call = stub_->PrepareAsyncProject(&context, Request(1 + (i % 3)), &queue);
        call->StartCall();
        v1::ProjectResponse response;
        grpc::Status status;
        call->Finish(&response, &status, nullptr);
        for (int64_t spin = random.Below(300); spin > 0; --spin) std::this_thread::yield();
        if (random.Below(3) != 0) context.TryCancel();
        void* tag;
        bool ok;
        queue.Next(&tag, &ok);
        EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
            << status.error_message();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  AwaitIdle();
  EXPECT_EQ(0, Metric("fulcrum_queue_rows"));
  ExpectServes();
}

TEST_F(ProjectTest, MalformedMessagesAreRefusedByTheRawPath) {
  Start();
  const std::string whole = Request(2).SerializeAsString();
  const std::string method = "/fulcrum.v1.ProjectionService/Project";
  EXPECT_TRUE(test::RawCall(channel_, method, whole).ok());
  for (size_t size = 0; size < whole.size(); size += 5) {
    EXPECT_EQ(grpc::StatusCode::INVALID_ARGUMENT,
              test::RawCall(channel_, method, whole.substr(0, size)).error_code())
        << size;
  }
  EXPECT_EQ(
      grpc::StatusCode::INVALID_ARGUMENT,
      test::RawCall(channel_, method, "\x2a\xff\xff\xff\xff\xff\xff\xff\xff\x3f 123").error_code());
  ExpectServes();
}

TEST_F(ProjectTest, ARequestAboveTheLimitNamesTheSide) {
  Start([](service::Config& config) { config.limits.max_message_bytes = 1 << 20; });
  v1::ProjectRequest request = Request();
  request.set_activations(std::string((1 << 20) + 1, 'x'));
  const grpc::Status status = Project(request);
  EXPECT_EQ(grpc::StatusCode::RESOURCE_EXHAUSTED, status.error_code());
  EXPECT_NE(std::string::npos, status.error_message().find("this node receives at most 1048576"))
      << status.error_message();
  EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  ASSERT_TRUE(DetailOf<google::rpc::ErrorInfo>(status).has_value());
  // What is larger still is cut by the transport.
  request.set_activations(std::string((2 << 20) + 1, 'x'));
  EXPECT_EQ(grpc::StatusCode::RESOURCE_EXHAUSTED, Project(request).error_code());
  ExpectServes();
}

TEST_F(ProjectTest, ALostDeviceAnswersUnavailableEverAfter) {
  Start();
  EXPECT_EQ(1, Health(""));
  {
    const auto running = Occupy();
    backend_->FailNext(absl::InternalError("illegal address"), /*lost=*/true);
    backend_->Release();
    running->thread.join();
    EXPECT_EQ(grpc::StatusCode::UNAVAILABLE, running->status.error_code());
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(grpc::StatusCode::UNAVAILABLE, Project(Request()).error_code());
  }
  EXPECT_EQ(2, Health(""));
  EXPECT_EQ(2, Health(kShard));
  EXPECT_EQ(1, Metric("fulcrum_device_faults_total{device=\"fake:0\"}"));
  EXPECT_EQ(absl::StatusCode::kInternal, failure().code());
}

TEST_F(ProjectTest, OneFailedLaunchOfAHealthyDeviceFailsItsCallsOnly) {
  Start();
  backend_->FailNext(absl::InternalError("out of luck"), /*lost=*/false);
  EXPECT_FALSE(Project(Request()).ok());
  ExpectServes();
  EXPECT_EQ(1, Health(""));
  EXPECT_TRUE(failure().ok());
}

// A caller that goes away before it sent anything did nothing wrong.
TEST_F(ProjectTest, ACallCancelledBeforeItsMessageIsCountedCancelled) {
  Start();
  grpc::GenericStub stub(NewChannel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, "/fulcrum.v1.ProjectionService/Project", &queue);
  void* tag;
  bool ok;
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  test::Eventually(
      [this] { return Metric("fulcrum_calls_total{code=\"CANCELLED\",method=\"Project\"}") == 1; },
      "the count");
  EXPECT_EQ(0, Metric("fulcrum_calls_total{code=\"INVALID_ARGUMENT\",method=\"Project\"}"));
  AwaitIdle();
}

// Replies larger than a client's window take their time on the wire: that time is the call's too.
TEST_F(ProjectTest, StagesSumToAtMostTheHandlingTime) {
  Start();
  Load("models/m/shards/wide", 5, 1 << 17);
  v1::ProjectRequest request = Request();
  request.set_shards(0, "models/m/shards/wide");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Project(request).ok());
  const auto sum = [this](const std::string& prefix) {
    const std::string text = server_->metrics().Text();
    double total = 0;
    for (size_t at = 0; (at = text.find("\n" + prefix, at)) != std::string::npos; ++at) {
      total += std::strtod(text.c_str() + text.find("} ", at) + 2, nullptr);
    }
    return total;
  };
  test::Eventually(
      [&] { return sum("grpc_server_handling_seconds_count{grpc_method=\"Project\",") == 5; },
      "the calls' end");
  EXPECT_LE(sum("fulcrum_stage_seconds_sum{"),
            sum("grpc_server_handling_seconds_sum{grpc_method=\"Project\","));
}

}  // namespace
}  // namespace fulcrum

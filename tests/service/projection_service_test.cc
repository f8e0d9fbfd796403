// Project as callers see it: right values, company in a launch, deadlines, cancellation and faults.
// Requests that are refused before anything runs are project_refusal_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_service.h"

#include <thread>

#include "tests/service/support/project_fixture.h"

namespace fulcrum {
namespace {

using test::Eventually;
using test::ProjectTest;

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
    // On a busy machine a call may not reach the node within its deadline, or the word that its
    // caller gave up may come before the node's own clock says so; neither is counted so.
    const auto one_was_counted = [this] {
      const auto late = Async(Request(), absl::Milliseconds(30));
      late->thread.join();
      EXPECT_EQ(grpc::StatusCode::DEADLINE_EXCEEDED, late->status.error_code());
      return Metric("fulcrum_calls_total{code=\"DEADLINE_EXCEEDED\",method=\"Project\"}") > 0;
    };
    Eventually(one_was_counted, "a call that expired in the queue");
    Eventually([this] { return server_->scheduler().queued_rows() == 0; }, "queued rows");
    backend_->Release();
  }
  AwaitIdle();
  EXPECT_EQ(1u, backend_->ran().size());
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

// Requests that Project refuses before anything runs: the status, its details, the words.
// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include "tests/service/support/project_fixture.h"

namespace fulcrum {
namespace {

using test::DetailOf;
using test::Eventually;
using test::ProjectTest;

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

}  // namespace
}  // namespace fulcrum

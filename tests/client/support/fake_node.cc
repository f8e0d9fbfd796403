// The scripted node of the client's tests.
// SPDX-License-Identifier: Apache-2.0
#include "tests/client/support/fake_node.h"

#include <bit>
#include <cstring>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/formats/bf16.h"

namespace fulcrum::client {
namespace {

grpc::Status Unset() { return {grpc::StatusCode::UNIMPLEMENTED, "not scripted"}; }

grpc::Status WithDetail(grpc::StatusCode code, const std::string& message,
                        const google::protobuf::Message& detail) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(message);
  status.add_details()->PackFrom(detail);
  return {code, message, status.SerializeAsString()};
}

}  // namespace

struct FakeNode::ProjectionImpl final : v1::ProjectionService::Service {
  explicit ProjectionImpl(FakeNode* owner) : node(owner) {}
  grpc::Status Project(grpc::ServerContext* context, const v1::ProjectRequest* request,
                       v1::ProjectResponse* response) override {
    ++node->projects_;
    return node->project ? node->project(context, request, response) : Unset();
  }
  grpc::Status ProjectStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ProjectStreamResponse, v1::ProjectRequest>* stream) override {
    return node->stream ? node->stream(context, stream) : Unset();
  }
  FakeNode* const node;
};

struct FakeNode::ShardImpl final : v1::ShardService::Service {
  explicit ShardImpl(FakeNode* owner) : node(owner) {}
  grpc::Status ListShards(grpc::ServerContext*, const v1::ListShardsRequest* request,
                          v1::ListShardsResponse* response) override {
    return node->list_shards ? node->list_shards(*request, response) : Unset();
  }
  grpc::Status LoadShard(grpc::ServerContext*, const v1::LoadShardRequest* request,
                         v1::Shard* response) override {
    return node->load_shard ? node->load_shard(*request, response) : Unset();
  }
  grpc::Status ReplaceShard(grpc::ServerContext*, const v1::ReplaceShardRequest* request,
                            v1::Shard* response) override {
    return node->load_shard ? node->load_shard(request->load(), response) : Unset();
  }
  grpc::Status UnloadShard(grpc::ServerContext*, const v1::UnloadShardRequest*,
                           v1::UnloadShardResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status ExplainLadder(grpc::ServerContext*, const v1::ExplainLadderRequest* request,
                             v1::ExplainLadderResponse* response) override {
    return node->explain_ladder ? node->explain_ladder(*request, response) : Unset();
  }
  grpc::Status GetNodeInfo(grpc::ServerContext*, const v1::GetNodeInfoRequest*,
                           v1::NodeInfo* response) override {
    *response = node->info;
    return grpc::Status::OK;
  }
  FakeNode* const node;
};

struct FakeNode::LeverImpl final : v1::LeverService::Service {
  explicit LeverImpl(FakeNode* owner) : node(owner) {}
  grpc::Status ListLevers(grpc::ServerContext*, const v1::ListLeversRequest*,
                          v1::ListLeversResponse* response) override {
    *response = node->levers;
    return grpc::Status::OK;
  }
  grpc::Status SetLevers(grpc::ServerContext*, const v1::SetLeversRequest* request,
                         v1::SetLeversResponse* response) override {
    return node->set_levers ? node->set_levers(*request, response) : Unset();
  }
  grpc::Status StartCanary(grpc::ServerContext*, const v1::StartCanaryRequest* request,
                           v1::Canary* response) override {
    return node->start_canary ? node->start_canary(*request, response) : Unset();
  }
  grpc::Status PromoteCanary(grpc::ServerContext*, const v1::PromoteCanaryRequest* request,
                             v1::Canary* response) override {
    return node->promote_canary ? node->promote_canary(*request, response) : Unset();
  }
  grpc::Status HeartbeatCanary(grpc::ServerContext*, const v1::HeartbeatCanaryRequest* request,
                               v1::Canary* response) override {
    return node->heartbeat_canary ? node->heartbeat_canary(*request, response) : Unset();
  }
  grpc::Status ListLeverHistory(grpc::ServerContext*, const v1::ListLeverHistoryRequest*,
                                v1::ListLeverHistoryResponse* response) override {
    *response = node->lever_history;
    return grpc::Status::OK;
  }
  grpc::Status WatchLevers(grpc::ServerContext*, const v1::WatchLeversRequest* request,
                           grpc::ServerWriter<v1::LeverEvent>* writer) override {
    if (node->watch_levers) return node->watch_levers(*request, writer);
    for (const v1::LeverEvent& event : node->lever_events) writer->Write(event);
    return grpc::Status::OK;
  }
  FakeNode* const node;
};

FakeNode::FakeNode()
    : projection_(std::make_unique<ProjectionImpl>(this)),
      shards_(std::make_unique<ShardImpl>(this)),
      lever_service_(std::make_unique<LeverImpl>(this)) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.RegisterService(projection_.get());
  builder.RegisterService(shards_.get());
  builder.RegisterService(lever_service_.get());
  server_ = builder.BuildAndStart();
  target_ = "127.0.0.1:" + std::to_string(port);
}

FakeNode::~FakeNode() { server_->Shutdown(std::chrono::system_clock::now()); }

grpc::Status WithRetryInfo(grpc::StatusCode code, const std::string& message,
                           absl::Duration delay) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay)));
  return WithDetail(code, message, info);
}

grpc::Status WithFieldViolation(const std::string& field, const std::string& description) {
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(field);
  violation->set_description(description);
  return WithDetail(grpc::StatusCode::INVALID_ARGUMENT, field + ": " + description, bad);
}

grpc::Status WithEpoch(const std::string& live_epoch) {
  google::rpc::ErrorInfo info;
  info.set_reason("STALE_EPOCH");
  info.set_domain("fulcrum");
  (*info.mutable_metadata())["live_epoch"] = live_epoch;
  return WithDetail(grpc::StatusCode::ABORTED, "based on an epoch that is not the live one", info);
}

void FillTwoShards(v1::ListShardsResponse* out, int64_t n, int64_t k, const std::string& origin) {
  for (const char* name : {"models/m/shards/a", "models/m/shards/b"}) {
    v1::Shard* shard = out->add_shards();
    shard->set_name(name);
    shard->set_n(n);
    shard->set_k(k);
    shard->set_format(v1::WEIGHT_FORMAT_BF16);
    shard->set_family(v1::FAMILY_ATTN_QKV);
    shard->set_phase(v1::PHASE_ATTENTION);
    shard->set_device("cpu:0");
    shard->set_bytes(2 * n * k);
    shard->set_hash("00ff");
    shard->set_version(1);
    shard->set_state(v1::SHARD_STATE_SERVING);
    shard->set_origin(origin);
  }
}

grpc::Status SumRows(const v1::ProjectRequest& request, int64_t n, v1::ProjectResponse* response) {
  const int64_t rows = request.rows();
  const int64_t k = static_cast<int64_t>(request.activations().size()) / 2 / rows;
  response->set_call_id(request.call_id());
  for (const std::string& shard : request.shards()) {
    v1::ShardOutput* output = response->add_outputs();
    output->set_shard(shard);
    output->set_n(n);
    output->set_hash("00ff");
    output->set_arm("dense_gemv_bf16");
    output->set_numerics(v1::NUMERICS_CLASS_EXACT);
    std::string& data = *output->mutable_data();
    for (int64_t m = 0; m < rows; ++m) {
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        uint16_t bits;
        std::memcpy(&bits, request.activations().data() + 2 * (m * k + i), 2);
        sum += Bf16ToF32(bits);
      }
      const uint16_t bits = F32ToBf16(sum);
      for (int64_t i = 0; i < n; ++i) data.append(reinterpret_cast<const char*>(&bits), 2);
    }
  }
  v1::Provenance* provenance = response->mutable_provenance();
  provenance->set_batch_rows(static_cast<int32_t>(2 * rows));
  provenance->set_lever_epoch(7);
  provenance->set_close_reason(v1::CLOSE_REASON_DEVICE_IDLE);
  provenance->mutable_stages()->set_kernel(1e-5);
  provenance->set_node("node-1");
  provenance->set_device("cpu:0");
  return grpc::Status::OK;
}

}  // namespace fulcrum::client

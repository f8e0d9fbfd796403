// A node made of handlers that a test fills in, on a loopback port of its own. It computes nothing:
// the client's tests script what it answers. Unset handlers answer UNIMPLEMENTED.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "fulcrum/v1/projection_service.grpc.pb.h"
#include "fulcrum/v1/shard_service.grpc.pb.h"

namespace fulcrum::client {

class FakeNode {
 public:
  using Project = std::function<grpc::Status(grpc::ServerContext*, const v1::ProjectRequest*,
                                             v1::ProjectResponse*)>;
  using Stream = std::function<grpc::Status(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ProjectStreamResponse, v1::ProjectRequest>*)>;

  FakeNode();
  ~FakeNode();

  const std::string& target() const { return target_; }
  int projects() const { return projects_; }

  // Set before the first call that uses them.
  Project project;
  Stream stream;
  std::function<grpc::Status(const v1::SetLeversRequest&, v1::SetLeversResponse*)> set_levers;
  std::function<grpc::Status(const v1::LoadShardRequest&, v1::Shard*)> load_shard;
  std::function<grpc::Status(const v1::ListShardsRequest&, v1::ListShardsResponse*)> list_shards;
  std::function<grpc::Status(const v1::ExplainLadderRequest&, v1::ExplainLadderResponse*)>
      explain_ladder;
  v1::NodeInfo info;
  v1::ListLeversResponse levers;
  std::function<grpc::Status(const v1::StartCanaryRequest&, v1::Canary*)> start_canary;
  std::function<grpc::Status(const v1::PromoteCanaryRequest&, v1::Canary*)> promote_canary;
  std::function<grpc::Status(const v1::HeartbeatCanaryRequest&, v1::Canary*)> heartbeat_canary;
  v1::ListLeverHistoryResponse lever_history;
  std::vector<v1::LeverEvent> lever_events;  // what WatchLevers sends before it ends, unless set:
  std::function<grpc::Status(const v1::WatchLeversRequest&, grpc::ServerWriter<v1::LeverEvent>*)>
      watch_levers;

 private:
  struct ProjectionImpl;
  struct ShardImpl;
  struct LeverImpl;
  std::atomic<int> projects_{0};
  std::unique_ptr<ProjectionImpl> projection_;
  std::unique_ptr<ShardImpl> shards_;
  std::unique_ptr<LeverImpl> lever_service_;
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

// A status with details, as a node sends it.
grpc::Status WithRetryInfo(grpc::StatusCode code, const std::string& message, absl::Duration delay);
grpc::Status WithFieldViolation(const std::string& field, const std::string& description);
grpc::Status WithEpoch(const std::string& live_epoch);  // ABORTED, ErrorInfo

// Shards "models/m/shards/a" and "models/m/shards/b", N = n, K = k, serving, origin `origin`.
void FillTwoShards(v1::ListShardsResponse* out, int64_t n, int64_t k, const std::string& origin);

// Answers Project as a node with exact BF16 weights of all ones would: each output is the row's
// sum.
grpc::Status SumRows(const v1::ProjectRequest& request, int64_t n, v1::ProjectResponse* response);

}  // namespace fulcrum::client

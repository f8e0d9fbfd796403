// ShardService on the wire: lists, loads, replaces and unloads shards, explains the ladder,
// describes the node. Checks and translates; the life of a shard is scheduler/shard_store.h's,
// files are shard_loader.h's, the choice of an arm is kernels/ladder/ladder.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "fulcrum/v1/shard_service.grpc.pb.h"
#include "kernels/backend.h"
#include "kernels/types.h"
#include "scheduler/lever_store.h"
#include "scheduler/observer.h"
#include "scheduler/shard_store.h"
#include "service/authorization.h"
#include "service/config.h"
#include "service/shard_loader.h"
#include "service/worker_pool.h"

namespace fulcrum::service {

// What GetNodeInfo says of the node, apart from its devices.
struct NodeFacts {
  std::string node;  // instance id, new at every start
  std::string version;
  absl::Time started;
  Policy default_policy = Policy::kBatchInvariant;
  LimitsConfig limits;
  // Thread-safe; null: never, nothing, none.
  std::function<bool()> draining = {};
  std::function<std::string()> not_serving = {};
  std::function<int64_t()> calls_in_flight = {};
  Observer* events = nullptr;  // hears of exceptions; outlives the service
};

inline constexpr int kMaxShardsPerCall = 16;  // as ProjectRequest.shards documents

class ShardServiceImpl final : public v1::ShardService::CallbackService {
 public:
  // All references outlive the service. Its destruction waits for loads that are running, so it
  // comes after the server's shutdown.
  ShardServiceImpl(ShardStore& store, const ShardLoader& loader, const LeverStore& levers,
                   std::vector<Backend*> backends, const Authorizer& authorizer, NodeFacts facts);

  // Loads that run end between two pieces of their weight, with CANCELLED.
  void RequestStop() { stop_.store(true); }

  grpc::ServerUnaryReactor* ListShards(grpc::CallbackServerContext* context,
                                       const v1::ListShardsRequest* request,
                                       v1::ListShardsResponse* response) override;
  grpc::ServerUnaryReactor* LoadShard(grpc::CallbackServerContext* context,
                                      const v1::LoadShardRequest* request,
                                      v1::Shard* response) override;
  grpc::ServerUnaryReactor* ReplaceShard(grpc::CallbackServerContext* context,
                                         const v1::ReplaceShardRequest* request,
                                         v1::Shard* response) override;
  grpc::ServerUnaryReactor* UnloadShard(grpc::CallbackServerContext* context,
                                        const v1::UnloadShardRequest* request,
                                        v1::UnloadShardResponse* response) override;
  grpc::ServerUnaryReactor* ExplainLadder(grpc::CallbackServerContext* context,
                                          const v1::ExplainLadderRequest* request,
                                          v1::ExplainLadderResponse* response) override;
  grpc::ServerUnaryReactor* GetNodeInfo(grpc::CallbackServerContext* context,
                                        const v1::GetNodeInfoRequest* request,
                                        v1::NodeInfo* response) override;

 private:
  enum class LoadKind { kLoad, kReplace };
  // Runs `work` on a worker and finishes the call with its status.
  grpc::ServerUnaryReactor* StartWork(grpc::CallbackServerContext* context,
                                      std::function<absl::Status()> work);
  grpc::ServerUnaryReactor* StartLoad(grpc::CallbackServerContext* context,
                                      const v1::LoadShardRequest& request, v1::Shard* response,
                                      LoadKind kind);
  absl::Status DoLoad(const v1::LoadShardRequest& request, std::optional<Family> family,
                      LoadKind kind, v1::Shard* response);
  absl::Status Explain(const v1::ExplainLadderRequest& request,
                       v1::ExplainLadderResponse* response) const;
  void Describe(v1::NodeInfo* response) const;

  ShardStore& store_;
  const ShardLoader& loader_;
  const LeverStore& levers_;
  const std::vector<Backend*> backends_;
  const Authorizer& authorizer_;
  const NodeFacts facts_;
  std::atomic<bool> stop_{false};
  WorkerPool workers_;  // last: its threads use the members above
};

}  // namespace fulcrum::service

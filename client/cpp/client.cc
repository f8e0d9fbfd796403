// The client's calls, except Project without waiting (async_project.cc) and connecting
// (connect.cc).
// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/client.h"

#include "absl/strings/str_cat.h"
#include "client/cpp/client_core.h"
#include "client/cpp/status.h"
#include "client/cpp/stream_reactor.h"
#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "fulcrum/v1/projection_service.grpc.pb.h"
#include "fulcrum/v1/shard_service.grpc.pb.h"
#include "health.grpc.pb.h"

namespace fulcrum::client {
namespace {

using v1::LeverService;
using v1::ProjectionService;
using v1::ShardService;

constexpr absl::Duration kLoadTimeout = absl::Minutes(10);

CallOptions WithoutRetry(CallOptions options) {
  options.retry = false;
  return options;
}

CallOptions ForLoading(CallOptions options) {
  options.retry = false;
  if (!options.timeout) options.timeout = kLoadTimeout;
  return options;
}

// One unary call with its retries, on this thread.
template <typename Service, typename Response, typename CoreType, typename Request, typename Method>
absl::StatusOr<Response> Unary(CoreType& core, Method method, const Request& request,
                               const CallOptions& options, CallInfo* info = nullptr) {
  CallInfo unwanted;
  if (info == nullptr) info = &unwanted;
  *info = {};
  const absl::Time deadline = core.DeadlineOf(options);
  while (true) {
    std::optional<absl::Duration> wait;
    Response response;
    absl::Status status;
    {
      const ConnectionUse use(core.Pick());
      const auto stub = Service::NewStub(use.channel());
      grpc::ClientContext context;
      core.Prepare(options, deadline, &context);
      status = FromGrpc(((*stub).*method)(&context, request, &response), context);
      wait = core.AfterAttempt(status, context, options.retry, deadline, info);
    }
    if (status.ok()) return response;
    if (!wait) return status;
    absl::SleepFor(*wait);
  }
}

}  // namespace

Client::Client(std::shared_ptr<Core> core) : core_(std::move(core)) {}
Client::~Client() = default;

absl::Status Client::WaitForReady(absl::Duration timeout) {
  const auto& channel = core_->connections().front()->channel;
  if (channel->WaitForConnected(absl::ToChronoTime(absl::Now() + timeout))) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(core_->target(), ": no connection within ",
                                                  absl::FormatDuration(timeout),
                                                  "; is the node up, and is this its address?"));
}

absl::StatusOr<v1::ProjectResponse> Client::Project(const v1::ProjectRequest& request,
                                                    const CallOptions& options, CallInfo* info) {
  return Unary<ProjectionService, v1::ProjectResponse>(*core_, &ProjectionService::Stub::Project,
                                                       request, options, info);
}

std::unique_ptr<ProjectStream> Client::OpenStream(const StreamOptions& options) {
  auto reactor = std::make_shared<ProjectStream::Reactor>(
      core_, ProjectionService::NewStub(core_->Pick()->channel));
  CallOptions call;
  call.wait_for_ready = options.wait_for_ready;
  call.traceparent = options.traceparent;
  call.tracestate = options.tracestate;
  Core::Prepare(call, options.timeout ? absl::Now() + *options.timeout : absl::InfiniteFuture(),
                &reactor->context());
  reactor->Start(reactor);
  return std::make_unique<ProjectStream>(std::move(reactor), options.max_in_flight);
}

absl::StatusOr<v1::ListShardsResponse> Client::ListShards(const v1::ListShardsRequest& request,
                                                          const CallOptions& options) {
  return Unary<ShardService, v1::ListShardsResponse>(*core_, &ShardService::Stub::ListShards,
                                                     request, options);
}

absl::StatusOr<v1::ExplainLadderResponse> Client::ExplainLadder(
    const v1::ExplainLadderRequest& request, const CallOptions& options) {
  return Unary<ShardService, v1::ExplainLadderResponse>(*core_, &ShardService::Stub::ExplainLadder,
                                                        request, options);
}

absl::StatusOr<v1::NodeInfo> Client::GetNodeInfo(const CallOptions& options) {
  return Unary<ShardService, v1::NodeInfo>(*core_, &ShardService::Stub::GetNodeInfo,
                                           v1::GetNodeInfoRequest(), options);
}

absl::StatusOr<v1::ListLeversResponse> Client::ListLevers(const CallOptions& options) {
  return Unary<LeverService, v1::ListLeversResponse>(*core_, &LeverService::Stub::ListLevers,
                                                     v1::ListLeversRequest(), options);
}

absl::StatusOr<v1::Shard> Client::LoadShard(const v1::LoadShardRequest& request,
                                            const CallOptions& options) {
  return Unary<ShardService, v1::Shard>(*core_, &ShardService::Stub::LoadShard, request,
                                        ForLoading(options));
}

absl::StatusOr<v1::Shard> Client::ReplaceShard(const v1::ReplaceShardRequest& request,
                                               const CallOptions& options) {
  return Unary<ShardService, v1::Shard>(*core_, &ShardService::Stub::ReplaceShard, request,
                                        ForLoading(options));
}

absl::Status Client::UnloadShard(const v1::UnloadShardRequest& request,
                                 const CallOptions& options) {
  return Unary<ShardService, v1::UnloadShardResponse>(*core_, &ShardService::Stub::UnloadShard,
                                                      request, ForLoading(options))
      .status();
}

absl::StatusOr<v1::SetLeversResponse> Client::SetLevers(const v1::SetLeversRequest& request,
                                                        const CallOptions& options) {
  return Unary<LeverService, v1::SetLeversResponse>(*core_, &LeverService::Stub::SetLevers, request,
                                                    WithoutRetry(options));
}

absl::StatusOr<v1::ListLeverHistoryResponse> Client::ListLeverHistory(
    const v1::ListLeverHistoryRequest& request, const CallOptions& options) {
  return Unary<LeverService, v1::ListLeverHistoryResponse>(
      *core_, &LeverService::Stub::ListLeverHistory, request, options);
}

absl::StatusOr<v1::Canary> Client::StartCanary(const v1::StartCanaryRequest& request,
                                               const CallOptions& options) {
  return Unary<LeverService, v1::Canary>(*core_, &LeverService::Stub::StartCanary, request,
                                         WithoutRetry(options));
}

absl::StatusOr<v1::Canary> Client::PromoteCanary(const v1::PromoteCanaryRequest& request,
                                                 const CallOptions& options) {
  return Unary<LeverService, v1::Canary>(*core_, &LeverService::Stub::PromoteCanary, request,
                                         WithoutRetry(options));
}

absl::StatusOr<v1::Canary> Client::AbortCanary(const v1::AbortCanaryRequest& request,
                                               const CallOptions& options) {
  return Unary<LeverService, v1::Canary>(*core_, &LeverService::Stub::AbortCanary, request,
                                         WithoutRetry(options));
}

absl::StatusOr<v1::Canary> Client::HeartbeatCanary(const v1::HeartbeatCanaryRequest& request,
                                                   const CallOptions& options) {
  return Unary<LeverService, v1::Canary>(*core_, &LeverService::Stub::HeartbeatCanary, request,
                                         options);
}

absl::Status Client::WatchLevers(const v1::WatchLeversRequest& request,
                                 const std::function<bool(const v1::LeverEvent&)>& on_event,
                                 const CallOptions& options) {
  const ConnectionUse use(core_->Pick());
  const auto stub = LeverService::NewStub(use.channel());
  grpc::ClientContext context;
  Core::Prepare(options, options.timeout ? absl::Now() + *options.timeout : absl::InfiniteFuture(),
                &context);
  const auto reader = stub->WatchLevers(&context, request);
  v1::LeverEvent event;
  while (reader->Read(&event)) {
    if (!on_event(event)) {
      context.TryCancel();
      (void)reader->Finish();  // CANCELLED, by us
      return absl::OkStatus();
    }
  }
  return FromGrpc(reader->Finish(), context);
}

absl::StatusOr<std::string> Client::CheckHealth(const std::string& service,
                                                const CallOptions& options) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  const auto response = Unary<grpc::health::v1::Health, grpc::health::v1::HealthCheckResponse>(
      *core_, &grpc::health::v1::Health::Stub::Check, request, options);
  if (!response.ok()) return response.status();
  return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response->status());
}

}  // namespace fulcrum::client

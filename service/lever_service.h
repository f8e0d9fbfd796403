// LeverService on the wire: lists and sets levers, streams every change, starts and ends canaries.
// Values, epochs and the rule for latched levers are scheduler/lever_store.h's, what becomes of a
// canary is scheduler/canary_control.h's. The canary's methods are in lever_service_canary.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "scheduler/canary_control.h"
#include "scheduler/lever_store.h"
#include "scheduler/observer.h"
#include "service/authorization.h"
#include "service/bounded_methods.h"

namespace fulcrum::service {

struct LeverServiceOptions {
  size_t watcher_queue = 256;  // events waiting for one slow watcher before it is cut off
  size_t max_watchers = 256;
  Observer* events = nullptr;  // hears of exceptions; outlives the service
};

class LeverServiceImpl final : public Bounded<v1::LeverService> {
 public:
  // All outlive the service; the service outlives the server's shutdown.
  LeverServiceImpl(LeverStore& store, CanaryControl& canaries, const Authorizer& authorizer,
                   LeverServiceOptions options = {});
  ~LeverServiceImpl() override;

  grpc::ServerUnaryReactor* ListLevers(grpc::CallbackServerContext* context,
                                       const v1::ListLeversRequest* request,
                                       v1::ListLeversResponse* response) override;
  grpc::ServerUnaryReactor* SetLevers(grpc::CallbackServerContext* context,
                                      const v1::SetLeversRequest* request,
                                      v1::SetLeversResponse* response) override;
  grpc::ServerWriteReactor<v1::LeverEvent>* WatchLevers(
      grpc::CallbackServerContext* context, const v1::WatchLeversRequest* request) override;
  grpc::ServerUnaryReactor* ListLeverHistory(grpc::CallbackServerContext* context,
                                             const v1::ListLeverHistoryRequest* request,
                                             v1::ListLeverHistoryResponse* response) override;
  grpc::ServerUnaryReactor* StartCanary(grpc::CallbackServerContext* context,
                                        const v1::StartCanaryRequest* request,
                                        v1::Canary* response) override;
  grpc::ServerUnaryReactor* PromoteCanary(grpc::CallbackServerContext* context,
                                          const v1::PromoteCanaryRequest* request,
                                          v1::Canary* response) override;
  grpc::ServerUnaryReactor* AbortCanary(grpc::CallbackServerContext* context,
                                        const v1::AbortCanaryRequest* request,
                                        v1::Canary* response) override;
  grpc::ServerUnaryReactor* HeartbeatCanary(grpc::CallbackServerContext* context,
                                            const v1::HeartbeatCanaryRequest* request,
                                            v1::Canary* response) override;

  // Ends every watch with UNAVAILABLE and refuses new ones: called when a drain begins, since a
  // server's shutdown waits for its streams.
  void Shutdown();

 private:
  class Watchers;
  // The status of a change that the store refused, with what a program needs to know of it.
  absl::Status Explain(absl::Status status, const std::vector<LeverChange>& changes) const;

  LeverStore& store_;
  CanaryControl& canaries_;
  const Authorizer& authorizer_;
  const std::unique_ptr<Watchers> watchers_;
};

}  // namespace fulcrum::service

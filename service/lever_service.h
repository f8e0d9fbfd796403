// LeverService on the wire: lists and sets levers, streams every change. Values, epochs and the
// rule for latched levers are scheduler/lever_store.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "scheduler/lever_store.h"
#include "service/authorization.h"

namespace fulcrum::service {

struct LeverServiceOptions {
  size_t watcher_queue = 256;  // events waiting for one slow watcher before it is cut off
  size_t max_watchers = 256;
};

class LeverServiceImpl final : public v1::LeverService::CallbackService {
 public:
  // Store and authorizer outlive the service; the service outlives the server's shutdown.
  LeverServiceImpl(LeverStore& store, const Authorizer& authorizer,
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

  // Ends every watch with UNAVAILABLE and refuses new ones: called when a drain begins, since a
  // server's shutdown waits for its streams.
  void Shutdown();

 private:
  class Watchers;
  LeverStore& store_;
  const Authorizer& authorizer_;
  const std::unique_ptr<Watchers> watchers_;
};

}  // namespace fulcrum::service

// ProjectionService on the wire: Project and ProjectStream over raw buffers, on gRPC's callback
// API. A handler parses, admits and submits on gRPC's thread without blocking; the slot thread that
// ran the batch encodes the reply and finishes the call. One call's way is projection_call.h; a
// unary RPC is projection_unary.h's, a stream projection_stream.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "grpcpp/impl/service_type.h"
#include "service/projection_call.h"

namespace fulcrum::service {

// Not the generated service: gRPC is to read neither method's first message by itself.
class ProjectionServiceImpl final : public grpc::Service {
 public:
  // The node outlives the service; the service outlives the server's shutdown.
  explicit ProjectionServiceImpl(ProjectionNode& node);
};

}  // namespace fulcrum::service

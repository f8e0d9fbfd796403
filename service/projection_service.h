// ProjectionService on the wire: Project and ProjectStream over raw buffers, on gRPC's callback
// API. A handler parses, admits and submits on gRPC's thread without blocking; the slot thread that
// ran the batch encodes the reply and finishes the call. One call's way is projection_call.h; a
// stream's bookkeeping is projection_stream.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fulcrum/v1/projection_service.grpc.pb.h"
#include "service/projection_call.h"

namespace fulcrum::service {

class StreamRegistry;

class ProjectionServiceImpl final : public v1::ProjectionService::WithRawCallbackMethod_Project<
                                        v1::ProjectionService::WithRawCallbackMethod_ProjectStream<
                                            v1::ProjectionService::Service>> {
 public:
  // The node outlives the service; the service outlives the server's shutdown.
  explicit ProjectionServiceImpl(ProjectionNode& node);
  ~ProjectionServiceImpl() override;

  grpc::ServerUnaryReactor* Project(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ProjectStream(
      grpc::CallbackServerContext* context) override;

  // Streams read no more; each ends with UNAVAILABLE when its calls in flight are answered.
  void DrainStreams();

 private:
  ProjectionNode& node_;
  const std::unique_ptr<StreamRegistry> streams_;
  const int project_metric_, stream_metric_;
};

}  // namespace fulcrum::service

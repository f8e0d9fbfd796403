// Both methods as gRPC's server knows them.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_service.h"

#include "service/headers_first.h"
#include "service/projection_stream.h"
#include "service/projection_unary.h"

namespace fulcrum::service {
namespace {

constexpr char kProjectName[] = "/fulcrum.v1.ProjectionService/Project";
constexpr char kStreamName[] = "/fulcrum.v1.ProjectionService/ProjectStream";

}  // namespace

ProjectionServiceImpl::ProjectionServiceImpl(ProjectionNode& node) {
  const auto add = [&](int index, const char* name, auto start) {
    AddMethod(new grpc::internal::RpcServiceMethod(name, grpc::internal::RpcMethod::BIDI_STREAMING,
                                                   nullptr));
    const int metric = node.metrics.GrpcMethod(name);
    MarkMethodRawCallback(index, HandlerFor(&node.events, [&node, metric, start](auto* context) {
                            return start(node, metric, context);
                          }));
  };
  add(0, kProjectName, UnaryCall::Start);
  add(1, kStreamName, ProjectionStream::Start);
}

}  // namespace fulcrum::service

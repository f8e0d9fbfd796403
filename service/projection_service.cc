// Both methods as gRPC's server knows them.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_service.h"

#include <functional>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "service/grpc_status.h"
#include "service/projection_stream.h"
#include "service/projection_unary.h"

namespace fulcrum::service {
namespace {

constexpr char kProjectName[] = "/fulcrum.v1.ProjectionService/Project";
constexpr char kStreamName[] = "/fulcrum.v1.ProjectionService/ProjectStream";

using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
using Method = grpc::internal::RpcServiceMethod;

// An RPC that could not even begin.
class NoRoom final : public Reactor {
 public:
  explicit NoRoom(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

Handler* MakeHandler(ProjectionNode& node,
                     std::function<Reactor*(grpc::CallbackServerContext*)> start) {
  return new Handler([&node, start = std::move(start)](grpc::CallbackServerContext* context) {
    Reactor* reactor = nullptr;
    const absl::Status thrown =
        Guarded(node.events, Thrower::kRpc, [&] { reactor = start(context); });
    if (!thrown.ok()) (void)Caught([&] { reactor = new NoRoom(thrown); });
    return reactor;  // for none gRPC says UNIMPLEMENTED
  });
}

}  // namespace

ProjectionServiceImpl::ProjectionServiceImpl(ProjectionNode& node) {
  const auto add = [&](int index, const char* name, auto start) {
    AddMethod(new Method(name, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    const int metric = node.metrics.GrpcMethod(name);
    MarkMethodRawCallback(index, MakeHandler(node, [&node, metric, start](auto* context) {
                            return start(node, metric, context);
                          }));
  };
  add(0, kProjectName, UnaryCall::Start);
  add(1, kStreamName, ProjectionStream::Start);
}

}  // namespace fulcrum::service

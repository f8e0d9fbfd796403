// The client side of the benchmarks: one stub, a context and a reply per slot, reused slots.
// SPDX-License-Identifier: Apache-2.0
#include "service/bench/project_loop.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <vector>

#include "fulcrum/v1/projection_service.grpc.pb.h"

namespace fulcrum::service {

v1::ProjectRequest MakeRequest(const std::string& shard, int64_t rows, int64_t k) {
  v1::ProjectRequest request;
  request.add_shards(shard);
  request.set_rows(rows);
  std::string* bytes = request.mutable_activations();
  bytes->reserve(static_cast<size_t>(rows * k * 2));
  for (int64_t i = 0; i < rows * k; ++i) {
    // 0x3f80 is 1.0: values from 1 to just under 2, alternating in sign.
    const uint16_t value = static_cast<uint16_t>(0x3f80 | (i * 37 & 0x7f) | (i & 1) << 15);
    bytes->push_back(static_cast<char>(value & 0xff));
    bytes->push_back(static_cast<char>(value >> 8));
  }
  return request;
}

LoopResult RunProjectLoop(const Target& target, const v1::ProjectRequest& request,
                          const LoopOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  const auto stub = v1::ProjectionService::NewStub(
      grpc::CreateCustomChannel(target.address, grpc::InsecureChannelCredentials(), arguments));

  struct Call {
    std::optional<grpc::ClientContext> context;
    v1::ProjectResponse response;
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < options.in_flight; ++i) calls.push_back(std::make_unique<Call>());

  return RunClosedLoop(options, [&](int slot, CallDone done) {
    Call* call = calls[static_cast<size_t>(slot)].get();
    call->context.emplace();
    call->response.Clear();
    stub->async()->Project(
        &*call->context, &request, &call->response,
        [call, done = std::move(done), bytes = target.reply_bytes](const grpc::Status& status) {
          const v1::ProjectResponse& reply = call->response;
          const bool whole = status.ok() && reply.outputs_size() == 1 &&
                             static_cast<int64_t>(reply.outputs(0).data().size()) == bytes;
          done({.ok = whole, .excluded_seconds = reply.provenance().stages().kernel()});
        });
  });
}

}  // namespace fulcrum::service

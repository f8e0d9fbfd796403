// See headers_first.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/headers_first.h"

#include "grpcpp/impl/codegen/proto_utils.h"
#include "scheduler/exceptions.h"
#include "service/bounded_methods.h"
#include "service/grpc_status.h"

namespace fulcrum::service {

using Traits = grpc::SerializationTraits<google::protobuf::Message>;

HeadersFirstRpc::HeadersFirstRpc(grpc::CallbackServerContext* context) : context_(context) {
  StartRead(&in_);
}

void HeadersFirstRpc::OnReadDone(bool ok) {
  grpc::Status status;
  if (!ok) {
    status = {grpc::StatusCode::INVALID_ARGUMENT, "the call ended without a message: expected one"};
  } else if (const size_t bytes = in_.Length();
             bytes > kMaxControlBytes || !Traits::Deserialize(&in_, &request()).ok()) {
    status = ToGrpc(RequestRefused(bytes, request().GetTypeName()));
  } else {
    grpc::ServerUnaryReactor* reactor = nullptr;
    const absl::Status thrown = Caught([&] { reactor = Run(); });
    if (thrown.ok()) return unary_.Bind(reactor);
    status = ToGrpc(thrown);
  }
  Answer(std::move(status));
}

void HeadersFirstRpc::Answer(grpc::Status status) {
  if (status.ok()) {
    bool owned = false;
    status = Traits::Serialize(response(), &out_, &owned);
  }
  if (status.ok()) {
    StartWriteAndFinish(&out_, grpc::WriteOptions(), std::move(status));
  } else {
    Finish(std::move(status));
  }
}

}  // namespace fulcrum::service

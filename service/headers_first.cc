// See headers_first.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/headers_first.h"

#include "grpcpp/impl/codegen/proto_utils.h"
#include "service/bounded_methods.h"
#include "service/grpc_status.h"

namespace fulcrum::service {
namespace {

using Traits = grpc::SerializationTraits<google::protobuf::Message>;

// An RPC that could not even begin.
class NoRoom final : public MessageReactor {
 public:
  explicit NoRoom(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

template <class Body>
absl::Status Watched(Observer* events, Body&& body) {
  return events == nullptr ? Caught(std::forward<Body>(body))
                           : Guarded(*events, Thrower::kRpc, std::forward<Body>(body));
}

grpc::Status WireOf(const absl::Status& status) {
  grpc::Status wire(static_cast<grpc::StatusCode>(status.code()), "");
  (void)Caught([&] { wire = ToGrpc(status); });
  return wire;
}

}  // namespace

grpc::internal::MethodHandler* HandlerFor(
    Observer* events, std::function<MessageReactor*(grpc::CallbackServerContext*)> start) {
  return new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
      [events, start = std::move(start)](grpc::CallbackServerContext* context) {
        MessageReactor* reactor = nullptr;
        const absl::Status thrown = Watched(events, [&] { reactor = start(context); });
        if (!thrown.ok()) (void)Caught([&] { reactor = new NoRoom(thrown); });
        return reactor;  // for none gRPC says UNIMPLEMENTED
      });
}

HeadersFirstRpc::HeadersFirstRpc(Observer* events, grpc::CallbackServerContext* context)
    : context_(context), events_(events) {
  StartRead(&in_);
}

void HeadersFirstRpc::OnReadDone(bool ok) {
  grpc::ServerUnaryReactor* reactor = nullptr;
  grpc::Status status;
  const absl::Status thrown = Watched(events_, [&] { status = Begin(ok, &reactor); });
  if (!thrown.ok()) {
    Answer(WireOf(thrown));
  } else if (reactor == nullptr) {
    Answer(std::move(status));
  } else {
    unary_.Bind(reactor);
  }
}

grpc::Status HeadersFirstRpc::Begin(bool ok, grpc::ServerUnaryReactor** reactor) {
  if (!ok) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "the call ended without a message: expected one"};
  }
  const size_t bytes = in_.Length();
  if (bytes > kMaxControlBytes || !Traits::Deserialize(&in_, &request()).ok()) {
    return ToGrpc(RequestRefused(bytes, request().GetTypeName()));
  }
  *reactor = Run();
  return grpc::Status::OK;
}

void HeadersFirstRpc::Answer(grpc::Status status) {
  if (status.ok()) {
    bool owned = false;
    const absl::Status thrown =
        Watched(events_, [&] { status = Traits::Serialize(response(), &out_, &owned); });
    if (!thrown.ok()) status = WireOf(thrown);
  }
  (void)Watched(events_, [&] {
    if (status.ok()) {
      StartWriteAndFinish(&out_, grpc::WriteOptions(), std::move(status));
    } else {
      Finish(std::move(status));
    }
  });
}

}  // namespace fulcrum::service

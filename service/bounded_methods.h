// Server-streaming methods of a callback service that look at the size of a request before they
// parse it; unary methods do so in headers_first.h. gRPC's receive limit is one for all methods of
// a node, as large as activations need, and protobuf makes objects of what it parses: an empty
// repeated message has two bytes on the wire and sixty in memory, an unknown group of four bytes is
// an object too. Control messages are small.
//
//   class Impl : public Bounded<v1::LeverService> {
//     Impl() { Bound("WatchLevers", this, &Impl::WatchLevers); }
//
// A request that is too large is RESOURCE_EXHAUSTED, one that is not a message of its type
// INVALID_ARGUMENT (where gRPC alone answers UNIMPLEMENTED).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "grpc/grpc.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "service/grpc_status.h"

namespace fulcrum::service {

// What a method takes whose requests are names and numbers: the longest honest ones (all levers
// assigned, a load with its path) have a few thousand bytes.
inline constexpr size_t kMaxControlBytes = 1 << 20;

// The status of a request of `bytes` bytes of type `type` that was not parsed: too large, or,
// within the limit, malformed.
absl::Status RequestRefused(size_t bytes, std::string_view type);

// Parses and runs with `Typed` what is within the limit and whole, with `Refusing`, the same kind
// of handler over byte buffers, what is not.
template <class Request, class Response, class Typed, class Refusing>
class BoundedHandler final : public grpc::internal::MethodHandler {
 public:
  BoundedHandler(std::unique_ptr<Typed> typed, std::unique_ptr<Refusing> refusing)
      : typed_(std::move(typed)), refusing_(std::move(refusing)) {}

  void* Deserialize(grpc_call* call, grpc_byte_buffer* bytes, grpc::Status* status,
                    void** handler_data) override {
    auto* choice = new (grpc_call_arena_alloc(call, sizeof(Choice))) Choice;
    *handler_data = choice;
    if (bytes != nullptr && grpc_byte_buffer_length(bytes) <= kMaxControlBytes) {
      void* request = typed_->Deserialize(call, bytes, status, &choice->data);
      if (status->ok()) {
        choice->handler = typed_.get();
        return request;
      }
      if (choice->data != nullptr) {
        static_cast<grpc::MessageHolder<Request, Response>*>(choice->data)->Release();
      }
      bytes = grpc_raw_byte_buffer_create(nullptr, 0);
    }
    choice->handler = refusing_.get();
    return refusing_->Deserialize(call, bytes, status, &choice->data);
  }

  void RunHandler(const HandlerParameter& of) override {
    const Choice& choice = *static_cast<Choice*>(of.internal_data);
    choice.handler->RunHandler(HandlerParameter(of.call, of.server_context, of.request, of.status,
                                                choice.data, of.call_requester));
  }

 private:
  struct Choice {  // in the call's arena, without a destructor
    grpc::internal::MethodHandler* handler = nullptr;
    void* data = nullptr;
  };

  const std::unique_ptr<Typed> typed_;
  const std::unique_ptr<Refusing> refusing_;
};

// `Rpc` is the class that gRPC generates for a service.
template <class Rpc>
class Bounded : public Rpc::CallbackService {
 protected:
  // Each once, before the service is registered. `name` is the method's in its .proto.
  template <class Impl, class Request, class Response>
  void Bound(const char* name, Impl* self,
             grpc::ServerWriteReactor<Response>* (Impl::*method)(grpc::CallbackServerContext*,
                                                                 const Request*)) {
    using Typed = grpc::internal::CallbackServerStreamingHandler<Request, Response>;
    using Refusing =
        grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
    auto typed = std::make_unique<Typed>(
        [self, method](grpc::CallbackServerContext* context, const Request* request) {
          return (self->*method)(context, request);
        });
    auto refusing =
        std::make_unique<Refusing>([](grpc::CallbackServerContext*, const grpc::ByteBuffer* bytes) {
          return new RefusedStream(Refused<Request>(*bytes));
        });
    this->MarkMethodCallback(IndexOf<Request>(name),
                             new BoundedHandler<Request, Response, Typed, Refusing>(
                                 std::move(typed), std::move(refusing)));
  }

 private:
  class RefusedStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
   public:
    explicit RefusedStream(const absl::Status& status) { this->Finish(ToGrpc(status)); }
    void OnDone() override { delete this; }
  };

  template <class Request>
  static absl::Status Refused(const grpc::ByteBuffer& bytes) {
    return RequestRefused(bytes.Valid() ? bytes.Length() : 0, Request::descriptor()->full_name());
  }

  // gRPC knows methods by their place in the .proto.
  template <class Request>
  static int IndexOf(const char* name) {
    const google::protobuf::MethodDescriptor* method =
        google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
            absl::StrCat(Rpc::service_full_name(), ".", name));
    assert(method != nullptr && method->input_type() == Request::descriptor());
    return method->index();
  }
};

}  // namespace fulcrum::service

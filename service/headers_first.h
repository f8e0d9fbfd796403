// Methods handed over by gRPC at their headers instead of at their message: to gRPC they are
// streams of messages, which on the wire is the same. So an RPC whose message is on its way is in
// the book, expires, and may finish after a stop began. The methods of generated services stay as
// the generated code declares them. What throws in any of them is an answer, never the process's
// end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include "google/protobuf/message.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "scheduler/observer.h"

namespace fulcrum::service {

using MessageReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Begins each RPC of a method with `start`; one that throws there is answered with what
// StatusOfException says. `events` hears of exceptions, if given.
grpc::internal::MethodHandler* HandlerFor(
    Observer* events, std::function<MessageReactor*(grpc::CallbackServerContext*)> start);

// One RPC of a unary method: reads its message, runs the method, sends what the method's reactor
// finishes with.
class HeadersFirstRpc : public MessageReactor {
 public:
  HeadersFirstRpc(Observer* events, grpc::CallbackServerContext* context);
  void OnReadDone(bool ok) override;
  void OnDone() override { delete this; }

 protected:
  virtual google::protobuf::Message& request() = 0;
  virtual const google::protobuf::Message& response() const = 0;
  virtual grpc::ServerUnaryReactor* Run() = 0;

  grpc::CallbackServerContext* const context_;

 private:
  // What the method's reactor takes for gRPC's side of a unary call.
  class Unary final : public grpc::ServerCallbackUnary {
   public:
    explicit Unary(HeadersFirstRpc& rpc) : rpc_(rpc) {}
    void Bind(grpc::ServerUnaryReactor* reactor) { BindReactor(reactor); }
    void Finish(grpc::Status status) override { rpc_.Answer(std::move(status)); }
    void SendInitialMetadata() override { rpc_.StartSendInitialMetadata(); }

   private:
    grpc::internal::ServerReactor* reactor() override { return &rpc_; }
    void CallOnDone() override {}
    HeadersFirstRpc& rpc_;
  };

  // The reactor that will finish the RPC, or how it is finished at once.
  grpc::Status Begin(bool ok, grpc::ServerUnaryReactor** reactor);
  void Answer(grpc::Status status);

  Observer* const events_;
  grpc::ByteBuffer in_, out_;
  Unary unary_{*this};
};

// For the constructor of a service: MarkMethodStreamed(index, HeadersFirst(events, this,
// &Impl::Method)), the index being the method's place in its proto.
template <class Service, class Request, class Response>
grpc::internal::MethodHandler* HeadersFirst(
    Observer* events, Service* service,
    grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*, const Request*,
                                                 Response*)) {
  using Method = decltype(method);
  class Rpc final : public HeadersFirstRpc {
   public:
    Rpc(Observer* events, grpc::CallbackServerContext* context, Service* service, Method method)
        : HeadersFirstRpc(events, context), service_(service), method_(method) {}

   private:
    google::protobuf::Message& request() override { return request_; }
    const google::protobuf::Message& response() const override { return response_; }
    grpc::ServerUnaryReactor* Run() override {
      return (service_->*method_)(context_, &request_, &response_);
    }

    Service* const service_;
    const Method method_;
    Request request_;
    Response response_;
  };
  return HandlerFor(events, [events, service, method](grpc::CallbackServerContext* context) {
    return new Rpc(events, context, service, method);
  });
}

}  // namespace fulcrum::service

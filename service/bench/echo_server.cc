// Two services of one interface behind one server; the reactor is gRPC's own for unary calls.
// SPDX-License-Identifier: Apache-2.0
#include "service/bench/echo_server.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "fulcrum/v1/projection_service.grpc.pb.h"

namespace fulcrum::service {
namespace {

v1::ProjectResponse Reply(const std::string& data) {
  v1::ProjectResponse reply;
  reply.add_outputs()->set_data(data);
  return reply;
}

class ProtoEcho final : public v1::ProjectionService::CallbackService {
 public:
  ProtoEcho(std::string data, EchoWork work) : data_(std::move(data)), work_(std::move(work)) {}

  grpc::ServerUnaryReactor* Project(grpc::CallbackServerContext* context,
                                    const v1::ProjectRequest* request,
                                    v1::ProjectResponse* response) override {
    if (work_) work_(*request, response);
    response->add_outputs()->set_data(data_);  // one copy, as from an output buffer
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::string data_;
  const EchoWork work_;
};

class RawEcho final
    : public v1::ProjectionService::WithRawCallbackMethod_Project<v1::ProjectionService::Service> {
 public:
  explicit RawEcho(const std::string& data) : wire_(Reply(data).SerializeAsString()) {}

  grpc::ServerUnaryReactor* Project(grpc::CallbackServerContext* context, const grpc::ByteBuffer*,
                                    grpc::ByteBuffer* response) override {
    const grpc::Slice slice(wire_.data(), wire_.size(), grpc::Slice::STATIC_SLICE);
    *response = grpc::ByteBuffer(&slice, 1);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::string wire_;  // outlives every call: the server stops first
};

class Running final : public EchoServer {
 public:
  explicit Running(std::unique_ptr<grpc::Service> service) : service_(std::move(service)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_.get());
    builder.SetMaxReceiveMessageSize(-1);
    server_ = builder.BuildAndStart();
  }
  ~Running() override {
    if (server_ != nullptr) server_->Shutdown();
  }
  bool ok() const { return server_ != nullptr && port_ != 0; }
  std::string address() const override { return "127.0.0.1:" + std::to_string(port_); }

 private:
  const std::unique_ptr<grpc::Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<EchoServer> StartEchoServer(EchoKind kind, int64_t reply_bytes, EchoWork work) {
  std::string data(static_cast<size_t>(reply_bytes), '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 131 + (i >> 8));
  std::unique_ptr<grpc::Service> service;
  if (kind == EchoKind::kProto) {
    service = std::make_unique<ProtoEcho>(std::move(data), std::move(work));
  } else {
    service = std::make_unique<RawEcho>(data);
  }
  auto running = std::make_unique<Running>(std::move(service));
  return running->ok() ? std::move(running) : nullptr;
}

}  // namespace fulcrum::service

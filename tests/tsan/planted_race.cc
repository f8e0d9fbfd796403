// A handler with a data race on purpose: two calls at a time add to one plain variable. The test
// passes when ThreadSanitizer reports it, which it must also through the shims and suppressions.
// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>

#include <thread>
#include <vector>

#include "fulcrum/v1/projection_service.grpc.pb.h"

namespace {

int g_rows = 0;  // the race

class RacyService final : public fulcrum::v1::ProjectionService::CallbackService {
  grpc::ServerUnaryReactor* Project(grpc::CallbackServerContext* context,
                                    const fulcrum::v1::ProjectRequest* request,
                                    fulcrum::v1::ProjectResponse*) override {
    const int before = g_rows;
    std::this_thread::yield();  // lets another call in between
    g_rows = before + static_cast<int>(request->rows());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

}  // namespace

int main() {
  RacyService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;

  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([port] {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      const auto stub = fulcrum::v1::ProjectionService::NewStub(grpc::CreateCustomChannel(
          "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(), arguments));
      fulcrum::v1::ProjectRequest request;
      request.set_rows(1);
      for (int call = 0; call < 2000; ++call) {
        grpc::ClientContext context;
        fulcrum::v1::ProjectResponse response;
        if (!stub->Project(&context, request, &response).ok()) return;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  server->Shutdown();
  return 0;
}

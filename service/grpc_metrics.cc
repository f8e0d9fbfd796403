// The list of methods, from the descriptors.
// SPDX-License-Identifier: Apache-2.0
#include "service/grpc_metrics.h"

#include "absl/strings/str_cat.h"
#include "fulcrum/v1/lever_service.pb.h"
#include "fulcrum/v1/projection_service.pb.h"
#include "fulcrum/v1/shard_service.pb.h"
#include "google/protobuf/descriptor.h"

namespace fulcrum::service {
namespace {

void AddMethods(const google::protobuf::FileDescriptor* file, std::vector<GrpcMethodName>& out) {
  for (int s = 0; s < file->service_count(); ++s) {
    const auto* service = file->service(s);
    for (int m = 0; m < service->method_count(); ++m) {
      const auto* method = service->method(m);
      const char* type = !method->server_streaming()  ? "unary"
                         : method->client_streaming() ? "bidi_stream"
                                                      : "server_stream";
      out.push_back({absl::StrCat("/", service->full_name(), "/", method->name()), type});
    }
  }
}

}  // namespace

std::vector<GrpcMethodName> NodeGrpcMethods() {
  std::vector<GrpcMethodName> methods;
  AddMethods(v1::ProjectRequest::descriptor()->file(), methods);
  AddMethods(v1::Shard::descriptor()->file(), methods);
  AddMethods(v1::Lever::descriptor()->file(), methods);
  methods.push_back({"/grpc.health.v1.Health/Check", "unary"});
  methods.push_back({"/grpc.health.v1.Health/Watch", "server_stream"});
  methods.push_back(
      {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "bidi_stream"});
  return methods;
}

std::vector<std::string> NodeGrpcServices() {
  std::vector<std::string> services;
  for (const GrpcMethodName& method : NodeGrpcMethods()) {
    // "/package.Service/Method"
    std::string service = method.full_name.substr(1, method.full_name.rfind('/') - 1);
    if (services.empty() || services.back() != service) services.push_back(std::move(service));
  }
  return services;
}

}  // namespace fulcrum::service

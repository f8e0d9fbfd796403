// The interceptor, and the list of methods from the descriptors.
// SPDX-License-Identifier: Apache-2.0
#include "service/grpc_metrics.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fulcrum/v1/lever_service.pb.h"
#include "fulcrum/v1/projection_service.pb.h"
#include "fulcrum/v1/shard_service.pb.h"
#include "google/protobuf/descriptor.h"

namespace fulcrum::service {
namespace {

using grpc::experimental::InterceptionHookPoints;

class MetricsInterceptor final : public grpc::experimental::Interceptor {
 public:
  MetricsInterceptor(Metrics& metrics, int method)
      : metrics_(metrics), method_(method), started_(absl::Now()) {
    metrics_.GrpcStarted(method_);
  }
  ~MetricsInterceptor() override {
    metrics_.GrpcHandled(method_, code_);
    metrics_.GrpcTook(method_, absl::ToDoubleSeconds(absl::Now() - started_));
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = static_cast<absl::StatusCode>(methods->GetSendStatus().error_code());
    }
    methods->Proceed();
  }

 private:
  Metrics& metrics_;
  const int method_;
  const absl::Time started_;
  absl::StatusCode code_ = absl::StatusCode::kCancelled;  // until a status is sent
};

class MetricsInterceptorFactory final
    : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit MetricsInterceptorFactory(Metrics& metrics) : metrics_(metrics) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const std::string_view method = info->method();
    constexpr std::string_view kCounted = "/fulcrum.v1.ProjectionService/";
    if (method.substr(0, kCounted.size()) == kCounted) return nullptr;
    const int index = metrics_.GrpcMethod(method);
    return index < 0 ? nullptr : new MetricsInterceptor(metrics_, index);
  }

 private:
  Metrics& metrics_;
};

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

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
MakeMetricsInterceptors(Metrics& metrics) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<MetricsInterceptorFactory>(metrics));
  return factories;
}

}  // namespace fulcrum::service

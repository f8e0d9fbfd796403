// Conventional server metrics (grpc_server_*) of every method but the projection calls, which count
// themselves: an interceptor costs a few allocations a call, and those have none to spare.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/support/server_interceptor.h"
#include "service/metrics.h"

namespace fulcrum::service {

// Every method this node answers, standard services included.
std::vector<GrpcMethodName> NodeGrpcMethods();
// Full names of the services of those methods.
std::vector<std::string> NodeGrpcServices();

// The metrics outlive the server that the interceptors are given to.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
MakeMetricsInterceptors(Metrics& metrics);

}  // namespace fulcrum::service

// The methods that conventional server metrics (grpc_server_*) are kept of. What counts them is
// rpc_interceptor.h, and the projection calls themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "service/metrics.h"

namespace fulcrum::service {

// Every method this node answers, standard services included.
std::vector<GrpcMethodName> NodeGrpcMethods();
// Full names of the services of those methods.
std::vector<std::string> NodeGrpcServices();

}  // namespace fulcrum::service

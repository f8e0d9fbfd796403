// Server reflection (grpc.reflection.v1alpha): which services the node has, and their descriptors,
// for tools without the .proto files. gRPC's own holds a thread for each stream and parses requests
// of any size; this one holds none, and takes requests of kMaxControlBytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"

namespace fulcrum::service {

// `services`: full names, as the list gives them. Descriptors are those linked into the process.
std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> services);

}  // namespace fulcrum::service

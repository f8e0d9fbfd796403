// HTTP/2 and message limits of the node's listener.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "grpcpp/server_builder.h"
#include "service/config.h"

namespace fulcrum::service {

void SetTransport(const Config& config, grpc::ServerBuilder& builder);

}  // namespace fulcrum::service

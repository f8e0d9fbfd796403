// The RPCs of every service but ProjectionService, which keeps its own records: conventional
// metrics (grpc_server_*), and the book. An interceptor costs a few allocations a call, which
// projection calls have none to spare for.
// What a service makes of an RPC is its own; here it only ends where the book says so: at its
// deadline and at the hard end of a stop, by gRPC's cancel with a status.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "grpcpp/support/server_interceptor.h"
#include "scheduler/observer.h"
#include "service/call_book.h"
#include "service/metrics.h"

namespace fulcrum::service {

// All outlive the server that the interceptors are given to.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
MakeRpcInterceptors(Metrics& metrics, CallBook& book, Observer& events);

}  // namespace fulcrum::service

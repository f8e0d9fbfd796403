// gRPC alone: a server that answers Project with a prepared reply of the right size and computes
// nothing. The messages are the node's own, so that what it costs is what the node cannot avoid.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "fulcrum/v1/projection_service.pb.h"

namespace fulcrum::service {

enum class EchoKind {
  kProto,  // request parsed, reply filled and serialised by protobuf
  kRaw,    // bytes in, bytes out: neither parsed nor copied
};

class EchoServer {
 public:
  virtual ~EchoServer() = default;
  virtual std::string address() const = 0;  // "127.0.0.1:port"
};

// What a kProto server does beside echoing, to be seen in its latency. Called by several threads.
using EchoWork = std::function<void(const v1::ProjectRequest&, v1::ProjectResponse*)>;

// Replies carry one output of `reply_bytes` bytes. Null when no port could be bound.
std::unique_ptr<EchoServer> StartEchoServer(EchoKind kind, int64_t reply_bytes, EchoWork work = {});

}  // namespace fulcrum::service

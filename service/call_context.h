// What a call brings in its metadata: its id and W3C trace context. Both are returned in the
// initial metadata and written to the log. Values from outside are checked before they are echoed:
// metadata that is not printable ASCII would end the call inside gRPC.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"

namespace fulcrum::service {

inline constexpr char kCallIdKey[] = "x-fulcrum-call-id";
inline constexpr size_t kMaxCallIdBytes = 128;

// A well-formed W3C traceparent: version, trace id and parent id in lower-case hex, not all zero.
bool IsTraceparent(std::string_view value);

struct CallContext {
  std::string id;           // from the metadata; empty when there was none
  std::string traceparent;  // empty unless well-formed
  std::string tracestate;   // only beside a traceparent

  std::string_view trace_id() const {
    return traceparent.empty() ? std::string_view() : std::string_view(traceparent).substr(3, 32);
  }
};

// INVALID_ARGUMENT for a call id that is too long. Trace context that is not well-formed is
// ignored, as its specification asks.
absl::Status ReadCallContext(const grpc::ServerContextBase& context, CallContext* out);

// The id a call goes by: the request's, else the metadata's, else one made from the node's instance
// id and a counter.
std::string ChooseCallId(std::string_view in_request, std::string_view in_metadata,
                         std::string_view node, uint64_t serial);

// Adds id and trace context to what the reply begins with. An id that metadata cannot carry is in
// the reply's message alone.
void EchoCallContext(std::string_view id, const CallContext& call,
                     grpc::ServerContextBase* context);

}  // namespace fulcrum::service

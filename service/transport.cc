// The channel arguments, with their reasons.
// SPDX-License-Identifier: Apache-2.0
#include "service/transport.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "grpcpp/grpcpp.h"
#include "grpcpp/resource_quota.h"

namespace fulcrum::service {
namespace {

// gRPC inflates a message before it looks at its size, so a message of 2 MB can take gigabytes, and
// the first sign of it is a process out of memory. Activations hardly compress: no algorithm is
// offered, and a request that uses one is UNIMPLEMENTED before a byte of it is inflated.
void RefuseCompression(grpc::ServerBuilder& builder) {
  for (int algorithm = GRPC_COMPRESS_NONE + 1; algorithm < GRPC_COMPRESS_ALGORITHMS_COUNT;
       ++algorithm) {
    builder.SetCompressionAlgorithmSupportStatus(static_cast<grpc_compression_algorithm>(algorithm),
                                                 false);
  }
}

// gRPC compares a message with the receive limit once all of it is in memory, and a length prefix
// can announce 4 GiB. What bounds the memory is the quota: when messages that arrive or wait take
// more, gRPC resets streams with ENHANCE_YOUR_CALM until they fit.
void BoundMemory(const LimitsConfig& limits, grpc::ServerBuilder& builder) {
  grpc::ResourceQuota quota("fulcrum");
  quota.Resize(static_cast<size_t>(limits.ReceiveBytes()));
  builder.SetResourceQuota(quota);
}

}  // namespace

void SetTransport(const Config& config, grpc::ServerBuilder& builder) {
  const LimitsConfig& limits = config.limits;
  // A request above the node's limit is refused by the call itself, which can say whose limit it
  // is; the transport cuts what is far above.
  constexpr int64_t kTransportMost = std::numeric_limits<int>::max();
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::min(2 * limits.max_message_bytes, kTransportMost)));
  builder.SetMaxSendMessageSize(-1);  // admission bounds replies
  RefuseCompression(builder);
  BoundMemory(limits, builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams);
  // Deadlines are the node's to keep (call_book.h). gRPC's own timer would cancel a call while the
  // node answers it, and an answer to a call that was cancelled so goes out as a second HEADERS
  // frame behind the end of its stream.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 0);
  // Two nodes must not share a port unseen.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients and proxies that ping an idle connection every few seconds are welcome; dead peers are
  // found by our own pings.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  // A connection that does not finish its handshake, TLS and the first SETTINGS frame, is closed.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  if (limits.max_connection_age < absl::InfiniteDuration()) {
    builder.AddChannelArgument(
        GRPC_ARG_MAX_CONNECTION_AGE_MS,
        static_cast<int>(absl::ToInt64Milliseconds(limits.max_connection_age)));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                               static_cast<int>(absl::ToInt64Milliseconds(config.drain)));
  }
}

}  // namespace fulcrum::service

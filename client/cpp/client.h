// The C++ client of a Fulcrum node: one object per node, shared by any number of threads. Retry
// rules are retry.h's, error details status.h's, many calls over one stream project_stream.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/project_stream.h"
#include "client/cpp/retry.h"
#include "fulcrum/v1/lever_service.pb.h"
#include "fulcrum/v1/projection_service.pb.h"
#include "fulcrum/v1/shard_service.pb.h"

namespace fulcrum::client {

// PEM files. ca alone: the node's certificate is checked. cert and key too: mutual TLS.
struct TlsOptions {
  std::string ca_file = {};
  std::string cert_file = {};
  std::string key_file = {};
};

struct ClientOptions {
  std::optional<TlsOptions> tls;  // nullopt: plain text
  // Deadline of calls that name none. A node sheds work by deadline, so every call has one.
  absl::Duration default_timeout = absl::Seconds(30);
  // HTTP/2 connections. A call takes the one with the fewest calls in flight. One connection
  // carries one or two large replies at a time well; concurrent callers with M >= 8 gain from
  // several.
  int channels = 1;
  // The target names several nodes that serve the same shards
  // ("ipv4:10.0.0.1:50051,10.0.0.2:50051", or a DNS name of several addresses): calls go round
  // those whose health says SERVING, so that one of them can be restarted without a failed call.
  // Else a connection stays with the first address that it reaches, whatever that node's health.
  bool balance = false;
  // Largest message, both ways. An LM-head reply at M = 32 is 16 MB; gRPC's own preset is 4 MB.
  int max_message_bytes = 64 << 20;
  RetryOptions retry;
};

struct CallOptions {
  std::optional<absl::Duration> timeout;  // nullopt: the client's default; all attempts together
  bool wait_for_ready = false;  // wait (until the deadline) for a connection instead of UNAVAILABLE
  bool retry = true;
  std::string call_id;      // metadata; the node makes one when neither this nor the request has it
  std::string traceparent;  // W3C trace context, passed on as it is
  std::string tracestate;
};

// What the transport knows about a finished call.
struct CallInfo {
  int attempts = 0;
  std::string call_id;      // as the node returned it; empty when the node was not reached
  std::string traceparent;  // as the node returned it
};

// A Project call in flight. Dropping it does not cancel the call.
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  virtual void Cancel() = 0;  // the callback still runs, with CANCELLED unless the reply came first
};

class Client {
 public:
  // Checks the options and reads the TLS files; connections are made when first needed.
  // INVALID_ARGUMENT: what is wrong with them; NOT_FOUND: an unreadable TLS file. `target` is a
  // gRPC target; the path of "unix:PATH" is taken as it stands, without URI escapes.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target,
                                                         const ClientOptions& options = {});
  ~Client();  // calls and streams in flight go on; they keep the connections
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Waits until one connection stands. DEADLINE_EXCEEDED with the target otherwise.
  absl::Status WaitForReady(absl::Duration timeout);

  // Project and everything that only reads is retried by the rules of retry.h. A node that stops
  // can end a call with CANCELLED although nobody cancelled it: that is retried like a lost
  // connection, so a caller sees CANCELLED after its own Cancel, or when the attempts are used up.
  absl::StatusOr<v1::ProjectResponse> Project(const v1::ProjectRequest& request,
                                              const CallOptions& options = {},
                                              CallInfo* info = nullptr);

  // `done` runs once, on a thread of gRPC's: it must not block. The request is not copied; it is
  // shared so that one payload can serve many calls.
  using ProjectDone =
      absl::AnyInvocable<void(absl::StatusOr<v1::ProjectResponse>, const CallInfo&) &&>;
  std::shared_ptr<PendingCall> ProjectAsync(std::shared_ptr<const v1::ProjectRequest> request,
                                            const CallOptions& options, ProjectDone done);

  // A pipelined stream over one connection; never null, a failure to connect is the stream's
  // status.
  std::unique_ptr<ProjectStream> OpenStream(const StreamOptions& options = {});

  absl::StatusOr<v1::ListShardsResponse> ListShards(const v1::ListShardsRequest& request,
                                                    const CallOptions& options = {});
  absl::StatusOr<v1::ExplainLadderResponse> ExplainLadder(const v1::ExplainLadderRequest& request,
                                                          const CallOptions& options = {});
  absl::StatusOr<v1::NodeInfo> GetNodeInfo(const CallOptions& options = {});
  absl::StatusOr<v1::ListLeversResponse> ListLevers(const CallOptions& options = {});

  // Calls that change the node are never retried: whether the first attempt took effect is not
  // known. Loading waits up to ten minutes unless the options say otherwise.
  absl::StatusOr<v1::Shard> LoadShard(const v1::LoadShardRequest& request,
                                      const CallOptions& options = {});
  absl::StatusOr<v1::Shard> ReplaceShard(const v1::ReplaceShardRequest& request,
                                         const CallOptions& options = {});
  absl::Status UnloadShard(const v1::UnloadShardRequest& request, const CallOptions& options = {});
  absl::StatusOr<v1::SetLeversResponse> SetLevers(const v1::SetLeversRequest& request,
                                                  const CallOptions& options = {});

  absl::StatusOr<v1::ListLeverHistoryResponse> ListLeverHistory(
      const v1::ListLeverHistoryRequest& request, const CallOptions& options = {});
  absl::StatusOr<v1::Canary> StartCanary(const v1::StartCanaryRequest& request,
                                         const CallOptions& options = {});
  absl::StatusOr<v1::Canary> PromoteCanary(const v1::PromoteCanaryRequest& request,
                                           const CallOptions& options = {});
  absl::StatusOr<v1::Canary> AbortCanary(const v1::AbortCanaryRequest& request,
                                         const CallOptions& options = {});
  // Repeating it does no harm, so it is retried like a read.
  absl::StatusOr<v1::Canary> HeartbeatCanary(const v1::HeartbeatCanaryRequest& request,
                                             const CallOptions& options = {});

  // Calls `on_event` for each change, on this thread, until it returns false (OK), or the node ends
  // the stream. Without a timeout in the options there is no deadline.
  absl::Status WatchLevers(const v1::WatchLeversRequest& request,
                           const std::function<bool(const v1::LeverEvent&)>& on_event,
                           const CallOptions& options = {});

  // grpc.health.v1 Check: "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN" or "UNKNOWN". An empty
  // service is the whole node; NOT_FOUND for a service it does not know.
  absl::StatusOr<std::string> CheckHealth(const std::string& service,
                                          const CallOptions& options = {});

 private:
  class Core;
  class AsyncProject;
  explicit Client(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace fulcrum::client

// Many Project calls in flight on one ProjectStream, each answered when it finishes, in any order.
// Made by Client::OpenStream. A failed call is that call's status; a broken stream is the status of
// every call still in flight, and is not reopened: the caller knows what is worth repeating.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fulcrum/v1/projection_service.pb.h"

namespace fulcrum::client {

struct StreamOptions {
  // Calls in flight before Send waits. The node has its own bound (GetNodeInfo.limits
  // .max_stream_calls) and stops reading beyond it.
  int max_in_flight = 64;
  std::optional<absl::Duration> timeout;  // of the whole stream; nullopt: none
  bool wait_for_ready = false;
  std::string traceparent;  // W3C trace context of the stream
  std::string tracestate;
};

class ProjectStream {
 public:
  using Result = absl::StatusOr<v1::ProjectResponse>;
  using Done = absl::AnyInvocable<void(Result) &&>;

  class Reactor;
  ProjectStream(std::shared_ptr<Reactor> reactor, int max_in_flight);
  // Cancels what is still in flight and waits for it. Not to be run by a callback of this stream.
  ~ProjectStream();
  ProjectStream(const ProjectStream&) = delete;
  ProjectStream& operator=(const ProjectStream&) = delete;

  // Takes the call, waiting while max_in_flight are out; `done` runs once iff this returns OK.
  // Callbacks of one stream run one at a time on a thread of gRPC's and must not block: a callback
  // that sends uses TrySend. An empty call_id is filled in.
  // ALREADY_EXISTS: the id is in flight. Otherwise the status that ended the stream.
  absl::Status Send(v1::ProjectRequest request, Done done);
  // The same without waiting: RESOURCE_EXHAUSTED while max_in_flight are out. In a callback its own
  // call is no longer counted.
  absl::Status TrySend(v1::ProjectRequest request, Done done);
  // As Send; an error of Send is the future's value.
  std::future<Result> Send(v1::ProjectRequest request);

  // No more sends; waits for every reply. The stream's own status: OK also when calls failed.
  absl::Status Finish();
  void Cancel();

  int in_flight() const;

 private:
  const std::shared_ptr<Reactor> reactor_;
  const int max_in_flight_;
};

}  // namespace fulcrum::client

// One projection call inside the node, whichever method brought it: parsed request, admission,
// gathering of its activations, and the view from which its reply is encoded. How the reply travels
// is the reactor's: projection_service.cc (unary) and projection_stream.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/scheduler.h"
#include "scheduler/shard_store.h"
#include "service/admission.h"
#include "service/authorization.h"
#include "service/call_context.h"
#include "service/health.h"
#include "service/log.h"
#include "service/metrics.h"
#include "service/parting.h"
#include "service/payload.h"
#include "service/project_codec.h"

namespace fulcrum::service {

// What every call needs of the node. Everything outlives the server.
struct ProjectionNode {
  const ShardStore& shards;
  Scheduler& scheduler;
  Metrics& metrics;
  const NodeHealth& health;
  const Authorizer& authorizer;
  const Logger& log;
  AdmissionRules rules;
  std::string id;  // instance id, new at every start
  bool log_calls = false;
  std::atomic<uint64_t> next_serial{1};  // for calls that bring no id
  Parting parting = {};                  // refusals of a draining node go through it
};

class ProjectionCall : public Call {
 public:
  // The call's clock starts here.
  ProjectionCall(ProjectionNode& node, CallMethod method);

  // What a call ends with whose caller went away, or whose deadline passed, before it was all
  // there.
  absl::Status WithoutMessage(const grpc::ServerContextBase& context) const;

  // Reads the message. INVALID_ARGUMENT when it is none, RESOURCE_EXHAUSTED above the node's limit.
  absl::Status Parse(const grpc::ByteBuffer& bytes);

  // Checks everything and fills the call; `context` is what its RPC brought. On OK the call is
  // ready for Scheduler::Submit.
  absl::Status Prepare(const grpc::ServerContextBase& context, const Peer& peer);

  void Gather(uint16_t* out) final;

  ProjectRequest& request() { return request_; }
  CallContext& call_context() { return call_context_; }

 protected:
  // The reply of an OK result; borrows from this call and the result.
  ResponseView MakeResponse(const CallResult& result, std::vector<OutputView>* outputs) const;
  // A scheduler's status as callers see it, with its details.
  absl::Status ToCaller(absl::Status status) const;
  void NoteResult(const CallResult& result);  // first thing in Complete
  // Exactly once each: before the reply goes to gRPC, and when it is sent or was dropped.
  void CountAnswer(const absl::Status& status);
  absl::Time Report(const absl::Status& status);  // when the call was over

  ProjectionNode& node_;

 private:
  absl::Status Expired() const;

  const CallMethod method_;
  ProjectRequest request_;
  CallContext call_context_;
  PayloadLayout layout_;
  absl::Time completed_ = absl::InfinitePast();
  StageSeconds stages_{};
  const Arm* arm_ = nullptr;  // of the first shard, once it ran
  int batch_rows_ = 0;
};

}  // namespace fulcrum::service

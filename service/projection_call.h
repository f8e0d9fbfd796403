// One projection call inside the node, whichever method brought it: parsed request, admission,
// gathering of its activations, the view from which its reply is encoded, and the one answer it
// gets. How the reply travels is the reactor's: projection_unary.h and projection_stream.h.
//
// Who answers: whoever takes the right to (Claim) first, be it the launch that ran it, its
// deadline, its caller going away, or the node's stop. Status, counts and log line are that one's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/scheduler.h"
#include "scheduler/shard_store.h"
#include "service/admission.h"
#include "service/authorization.h"
#include "service/call_book.h"
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
  Observer& events;  // hears of exceptions
  CallBook& book;
  const NodeHealth& health;
  const Authorizer& authorizer;
  const Logger& log;
  AdmissionRules rules;
  std::string id;  // instance id, new at every start
  bool log_calls = false;
  std::atomic<uint64_t> next_serial{1};  // for calls that bring no id
  Parting parting = {};                  // refusals of a draining node go through it
};

// The deadline that a call brought; the infinite future for none.
absl::Time DeadlineOf(const grpc::ServerContextBase& context);

class ProjectionCall : public Call, public OpenCall {
 public:
  ProjectionCall(ProjectionNode& node, CallMethod method);

  // OpenCall.
  void Expire() final;
  std::optional<OpenFacts> CutOff() final;
  OpenFacts Facts() const final;

  void Gather(uint16_t* out) final;

  ProjectRequest& request() { return request_; }
  CallContext& call_context() { return call_context_; }

 protected:
  // Answers the call, whose right to answer was claimed, without a result. Throws nothing.
  virtual void AnswerEarly(const absl::Status& status) = 0;

  // The message is here; false: the call is answered already.
  bool BeginPreparing();
  // Reads the message. INVALID_ARGUMENT when it is none, RESOURCE_EXHAUSTED above the node's limit.
  absl::Status Parse(const grpc::ByteBuffer& bytes);
  // Checks everything and fills the call; its deadline is set. On OK the call is ready for Submit.
  absl::Status Prepare(const Peer& peer);
  // Hands the call, shared as `self`, to the scheduler, which will Complete it iff this is OK. Once
  // it is OK the call may be over.
  absl::Status Submit(std::shared_ptr<Call> self, OnIdle on_idle);

  // The right to answer, for one thread.
  bool Claim() { return progress_.exchange(Progress::kAnswered) != Progress::kAnswered; }
  bool answered() const { return progress_.load() == Progress::kAnswered; }
  // The caller, the deadline or the stop wants the call over: answers it with what that means here,
  // or has the scheduler complete it. Where the call was; nothing if it goes on or is over.
  std::optional<std::string_view> EndEarly(LeaveBy by);

  // Counts a call that ends with `status`, as EarlyStatus made it, and did not come to the queue.
  void CountNotRun(const absl::Status& status) const;
  // What a call ends with that something else than its result ended, in that stage.
  absl::Status EarlyStatus(LeaveBy by, Stage stage) const;

  // The reply of an OK result; borrows from this call and the result.
  ResponseView MakeResponse(const CallResult& result, std::vector<OutputView>* outputs) const;
  // A scheduler's status as callers see it, with its details.
  absl::Status ToCaller(absl::Status status) const;
  void NoteResult(const CallResult& result);  // by who claimed, in Complete
  // Exactly once each: before the reply goes to gRPC, and when it is sent or was dropped.
  void CountAnswer(const absl::Status& status);
  void Report(const absl::Status& status);

  void ChooseId();  // once the request is read, or will not be

  ProjectionNode& node_;
  std::string peer_address_;

 private:
  enum class Progress : uint8_t {
    kReceiving,  // its message is not here
    kTaken,      // being checked, waiting or running: the scheduler knows more
    kAnswered,
  };

  const CallMethod method_;
  ProjectRequest request_;
  CallContext call_context_;
  PayloadLayout layout_;
  std::atomic<Progress> progress_{Progress::kReceiving};
  static constexpr int kNobody = -1;
  std::atomic<int> end_wanted_{kNobody};  // a LeaveBy
  absl::Time completed_ = absl::InfinitePast();
  StageSeconds stages_{};
  const Arm* arm_ = nullptr;  // of the first shard, once it ran
  int batch_rows_ = 0;
};

}  // namespace fulcrum::service

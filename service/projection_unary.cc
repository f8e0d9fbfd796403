// A Project RPC's callbacks.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_unary.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "service/grpc_status.h"

namespace fulcrum::service {

UnaryCall::UnaryCall(ProjectionNode& node, int method, grpc::CallbackServerContext* context)
    : ProjectionCall(node, CallMethod::kProject),
      context_(context),
      peer_(node.authorizer.PeerOf(*context)) {
  metric = method;
  deadline = expires = DeadlineOf(*context);
  peer_address_ = peer_.address;
}

UnaryCall* UnaryCall::Start(ProjectionNode& node, int metric,
                            grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<UnaryCall>(node, metric, context);
  UnaryCall& self = *call;
  absl::Status status = ReadCallContext(*context, &self.call_context());
  const bool late = !node.book.Add(call);  // from here on other threads may answer it
  node.metrics.GrpcStarted(metric);
  const absl::Status thrown = Guarded(node.events, Thrower::kRpc, [&] {
    if (late || status.ok()) status = self.CheckHeaders(late);
  });
  if (!thrown.ok()) status = thrown;
  if (status.ok()) {
    self.StartRead(&self.message_);
    return &self;
  }
  const auto refuse = [call, status] {
    if (call->Claim()) call->End(status);
  };
  if (!late || !Guarded(node.events, Thrower::kRpc, [&] { node.parting.Answer(refuse); }).ok()) {
    refuse();
  }
  return &self;
}

absl::Status UnaryCall::CheckHeaders(bool late) {
  if (late) {
    node_.metrics.OnReject(RejectReason::kDraining);
    return absl::UnavailableError("the node is draining; call another node");
  }
  if (auto status = node_.authorizer.CheckCaller(peer_); !status.ok()) return status;
  if (deadline > began) return absl::OkStatus();
  absl::Status expired = EarlyStatus(LeaveBy::kDeadline, Stage::kAdmit);
  CountNotRun(expired);
  return expired;
}

void UnaryCall::OnReadDone(bool ok) {
  const auto keep = std::static_pointer_cast<UnaryCall>(shared_from_this());
  if (!ok && context_->IsCancelled()) {
    (void)Guarded(node_.events, Thrower::kRpc, [&] { (void)EndEarly(LeaveBy::kCaller); });
    return;
  }
  if (!BeginPreparing()) return;  // its deadline passed, say, while it was coming
  absl::Status status;
  const absl::Status thrown = Guarded(node_.events, Thrower::kRpc, [&] {
    status = ok ? TakeMessage()
                : absl::InvalidArgumentError("the call ended without a message: expected one");
    if (status.ok()) status = Submit(keep, OnIdle::kRunHere);
  });
  if (!thrown.ok()) {
    if (place.load() != CallPlace::kOutside) return;  // the scheduler will complete it
    status = thrown;
  }
  if (!status.ok() && Claim()) End(status);
}

absl::Status UnaryCall::TakeMessage() {
  if (auto status = Parse(message_); !status.ok()) return status;
  message_.Clear();
  ChooseId();
  return Prepare(peer_);
}

void UnaryCall::Complete(const CallResult& result) {
  if (!Claim()) return;
  absl::Status status = result.status;
  const absl::Status thrown = Guarded(node_.events, Thrower::kRpc, [&] {
    NoteResult(result);
    if (!status.ok()) {
      status = ToCaller(std::move(status));
      return;
    }
    std::vector<OutputView> outputs;
    reply_ = EncodeProjectResponse(MakeResponse(result, &outputs));
  });
  End(thrown.ok() ? status : thrown);
}

void UnaryCall::AnswerEarly(const absl::Status& status) { End(status); }

void UnaryCall::End(const absl::Status& status) {
  status_ = status;
  grpc::Status wire;
  const absl::Status thrown = Guarded(node_.events, Thrower::kRpc, [&] {
    if (id.empty()) ChooseId();
    EchoCallContext(id, call_context(), context_);
    wire = ToGrpc(status_);
  });
  if (!thrown.ok()) {  // without a word, which takes memory: an answer all the same
    status_ = thrown;
    wire = grpc::Status(static_cast<grpc::StatusCode>(status_.code()), "");
  }
  CountAnswer(status_);
  node_.metrics.GrpcHandled(metric, status_.code());
  (void)Guarded(node_.events, Thrower::kRpc, [&] {
    if (status_.ok()) {
      StartWriteAndFinish(&reply_, grpc::WriteOptions(), std::move(wire));
    } else {
      Finish(std::move(wire));
    }
  });
}

void UnaryCall::OnCancel() {
  (void)Guarded(node_.events, Thrower::kRpc, [&] { (void)EndEarly(LeaveBy::kCaller); });
}

void UnaryCall::OnDone() {
  (void)Guarded(node_.events, Thrower::kRpc, [&] { Report(status_); });
  node_.metrics.GrpcTook(metric, absl::ToDoubleSeconds(absl::Now() - began));
  const std::shared_ptr<OpenCall> last = node_.book.Remove(*this);
}

}  // namespace fulcrum::service

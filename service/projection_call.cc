// Preparation, reply and report of one call.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_call.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "service/grpc_status.h"
#include "service/proto_names.h"

namespace fulcrum::service {
namespace {

// A queue that is full now drains by a batch every few milliseconds; sooner than this a retry only
// adds load.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(20);

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

double Seconds(const StageSeconds& stages, Stage stage) {
  return stages[static_cast<size_t>(stage)];
}

}  // namespace

ProjectionCall::ProjectionCall(ProjectionNode& node, CallMethod method)
    : node_(node), method_(method) {
  arrived = absl::Now();
  node_.metrics.CallStarted();
}

absl::Status ProjectionCall::Parse(const grpc::ByteBuffer& bytes) {
  const auto size = static_cast<int64_t>(bytes.Valid() ? bytes.Length() : 0);
  const int64_t limit = node_.rules.limits.max_message_bytes;
  if (size > limit) {
    return WithInfo(absl::ResourceExhaustedError(absl::StrCat(
                        "the request has ", size, " bytes, this node receives at most ", limit,
                        " (its max_message_bytes); send fewer rows, or raise the node's limit")),
                    "REQUEST_TOO_LARGE",
                    {{"needed_bytes", absl::StrCat(size)}, {"limit_bytes", absl::StrCat(limit)}});
  }
  return ParseProjectRequest(bytes, &request_);
}

absl::Status ProjectionCall::Expired() const {
  node_.metrics.OnReject(RejectReason::kExpired);
  return WithInfo(
      absl::DeadlineExceededError("deadline passed in stage admit; the call did not run"),
      "DEADLINE_EXCEEDED", {{"stage", std::string(Name(Stage::kAdmit))}});
}

absl::Status ProjectionCall::WithoutMessage(const grpc::ServerContextBase& context) const {
  if (DeadlineOf(context) <= absl::Now()) return Expired();
  return absl::CancelledError("the call ended before its message arrived");
}

absl::Status ProjectionCall::Prepare(const grpc::ServerContextBase& context, const Peer& peer) {
  id = ChooseCallId(request_.call_id, call_context_.id, node_.id,
                    node_.next_serial.fetch_add(1, std::memory_order_relaxed));
  client = peer.identity;
  connection = peer.connection;
  deadline = DeadlineOf(context);
  if (auto status = node_.health.CheckNode(); !status.ok()) {
    node_.metrics.OnReject(RejectReason::kDraining);
    return status;
  }
  if (auto status = node_.authorizer.CheckCaller(peer); !status.ok()) return status;
  if (deadline <= arrived) return Expired();
  if (auto status = Admit(request_, node_.rules, node_.shards, this, &layout_); !status.ok()) {
    return status;
  }
  if (auto status = node_.health.CheckDevice(shards.front()->backend); !status.ok()) return status;
  stages_[static_cast<size_t>(Stage::kAdmit)] = absl::ToDoubleSeconds(absl::Now() - arrived);
  return absl::OkStatus();
}

void ProjectionCall::Gather(uint16_t* out) { GatherBf16(request_.activations, layout_, out); }

void ProjectionCall::NoteResult(const CallResult& result) {
  completed_ = absl::Now();
  const double admit = Seconds(stages_, Stage::kAdmit);
  stages_ = result.provenance.stages;
  stages_[static_cast<size_t>(Stage::kAdmit)] = admit;
  if (result.status.ok()) {
    arm_ = result.provenance.arms.front();
    batch_rows_ = result.provenance.batch_rows;
  }
}

ResponseView ProjectionCall::MakeResponse(const CallResult& result,
                                          std::vector<OutputView>* outputs) const {
  outputs->reserve(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const Shard& shard = *shards[i];
    const Arm& arm = *result.provenance.arms[i];
    OutputView& output = outputs->emplace_back();
    output.shard = shard.name;
    output.data = result.outputs[i];
    output.n = shard.n();
    output.hash = shard.hash;
    output.version = shard.version;
    output.arm = arm.name;
    output.numerics = ToProto(arm.numerics);
  }
  ResponseView view;
  view.call_id = id;
  view.rows = rows;
  view.element_bytes = SizeOf(output_type);
  view.output_pitch = request_.output_pitch;
  view.outputs = *outputs;
  view.batch_rows = result.provenance.batch_rows;
  view.lever_epoch = result.provenance.lever_epoch;
  view.close_reason = ToProto(result.provenance.close_reason);
  view.stages = stages_;
  view.node = node_.id;
  view.device = shards.front()->backend->device().id;
  return view;
}

absl::Status ProjectionCall::ToCaller(absl::Status status) const {
  if (absl::IsCancelled(status) && deadline <= absl::Now()) {
    // gRPC cancels a call whose deadline passes; the caller is told the cause.
    status = absl::DeadlineExceededError("deadline passed in stage queue; the call did not run");
  }
  if (absl::IsResourceExhausted(status)) return WithRetry(std::move(status), kRetryDelay);
  if (absl::IsDeadlineExceeded(status)) {
    // A call that was picked completes; only waiting calls expire.
    return WithInfo(std::move(status), "DEADLINE_EXCEEDED",
                    {{"stage", std::string(Name(Stage::kQueue))}});
  }
  return status;
}

void ProjectionCall::CountAnswer(const absl::Status& status) {
  node_.metrics.CallAnswered(method_, status.code());
}

absl::Time ProjectionCall::Report(const absl::Status& status) {
  node_.metrics.CallOver();
  const absl::Time now = absl::Now();
  if (arm_ != nullptr) {
    const Phase phase = PhaseOf(shards.front()->family);
    stages_[static_cast<size_t>(Stage::kReply)] = absl::ToDoubleSeconds(now - completed_);
    for (Stage stage : {Stage::kAdmit, Stage::kReply}) {
      node_.metrics.CallStage(*arm_, phase, stage, Seconds(stages_, stage));
    }
  }
  if (!node_.log_calls) return now;
  node_.log.Info("call", {{"id", id},
                          {"method", Name(method_)},
                          {"code", CodeName(status.code())},
                          {"error", status.message().empty() ? std::string("-")
                                                             : std::string(status.message())},
                          {"client", client},
                          {"trace", call_context_.trace_id()},
                          {"shard", shards.empty() ? std::string("-") : shards.front()->name},
                          {"shards", shards.size()},
                          {"rows", rows},
                          {"arm", arm_ == nullptr ? std::string_view("-") : arm_->name},
                          {"batch_rows", batch_rows_},
                          {"seconds", absl::ToDoubleSeconds(now - arrived)},
                          {"admit", Seconds(stages_, Stage::kAdmit)},
                          {"queue", Seconds(stages_, Stage::kQueue)},
                          {"kernel", Seconds(stages_, Stage::kKernel)},
                          {"reply", Seconds(stages_, Stage::kReply)}});
  return now;
}

}  // namespace fulcrum::service

// One projection call's preparation, its ends and its report.
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

double Seconds(const StageSeconds& stages, Stage stage) {
  return stages[static_cast<size_t>(stage)];
}

// A shard that is not there yet, on a node that still loads its models: nothing is wrong with the
// call, which another node may answer, and this one a moment later.
absl::Status WhileLoading(absl::Status status) {
  if (!absl::IsNotFound(status) && !absl::IsFailedPrecondition(status)) return status;
  return absl::UnavailableError(
      absl::StrCat("the node still loads its models: ", std::string(status.message()),
                   "; call another node, or this one once its health is SERVING"));
}

}  // namespace

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

ProjectionCall::ProjectionCall(ProjectionNode& node, CallMethod method)
    : node_(node), method_(method) {
  began = arrived = absl::Now();
}

bool ProjectionCall::BeginPreparing() {
  Progress receiving = Progress::kReceiving;
  return progress_.compare_exchange_strong(receiving, Progress::kTaken);
}

absl::Status ProjectionCall::Parse(const grpc::ByteBuffer& bytes) {
  arrived = absl::Now();
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

void ProjectionCall::ChooseId() {
  id = ChooseCallId(request_.call_id, call_context_.id, node_.id,
                    node_.next_serial.fetch_add(1, std::memory_order_relaxed));
}

absl::Status ProjectionCall::Prepare(const Peer& peer) {
  client = peer.identity;
  connection = peer.connection;
  if (deadline <= arrived) {
    absl::Status late = EarlyStatus(LeaveBy::kDeadline, Stage::kAdmit);
    CountNotRun(late);
    return late;
  }
  if (auto status = Admit(request_, node_.rules, node_.shards, this, &layout_); !status.ok()) {
    return node_.health.loaded() ? status : WhileLoading(std::move(status));
  }
  if (auto status = node_.health.CheckDevice(shards.front()->backend); !status.ok()) return status;
  stages_[static_cast<size_t>(Stage::kAdmit)] = absl::ToDoubleSeconds(absl::Now() - arrived);
  return absl::OkStatus();
}

absl::Status ProjectionCall::Submit(std::shared_ptr<Call> self, OnIdle on_idle) {
  absl::Status status = node_.scheduler.Submit(self, on_idle);
  if (!status.ok()) return ToCaller(std::move(status));
  // Who wanted its end before the scheduler had it found nothing to end.
  if (const int by = end_wanted_.load(); by != kNobody) (void)EndEarly(static_cast<LeaveBy>(by));
  return absl::OkStatus();
}

std::optional<std::string_view> ProjectionCall::EndEarly(LeaveBy by) {
  if (answered()) return std::nullopt;
  int nobody = kNobody;
  end_wanted_.compare_exchange_strong(nobody, static_cast<int>(by));
  absl::Status status = EarlyStatus(by, Stage::kAdmit);  // before what cannot be taken back
  Progress receiving = Progress::kReceiving;
  if (progress_.compare_exchange_strong(receiving, Progress::kAnswered)) {
    CountNotRun(status);
    AnswerEarly(status);
    return "receiving";
  }
  switch (node_.scheduler.Cancel(this, by)) {
    case CallPlace::kWaiting:
      return "queue";
    case CallPlace::kRunning:
      status = EarlyStatus(by, Stage::kKernel);
      if (!Claim()) return std::nullopt;
      AnswerEarly(status);
      return "running";
    case CallPlace::kOutside:
      if (answered()) return std::nullopt;
      return "admit";
    case CallPlace::kLeft:
      break;
  }
  return std::nullopt;
}

absl::Status ProjectionCall::EarlyStatus(LeaveBy by, Stage stage) const {
  const absl::Time now = absl::Now();
  const std::string in(Name(stage));
  const bool ran = stage != Stage::kAdmit;
  if (deadline <= now || (by == LeaveBy::kCaller && CallersTimeIsOver(deadline, began, now))) {
    return WithInfo(absl::DeadlineExceededError(absl::StrCat(
                        "deadline passed in stage ", in,
                        ran ? "; the result is not waited for" : "; the call did not run")),
                    "DEADLINE_EXCEEDED", {{"stage", in}});
  }
  if (by == LeaveBy::kDrain) {
    return absl::UnavailableError(
        absl::StrCat("the node stopped while the call was in stage ", in, "; call another node"));
  }
  return absl::CancelledError(absl::StrCat("the caller cancelled in stage ", in));
}

void ProjectionCall::CountNotRun(const absl::Status& status) const {
  node_.metrics.OnReject(absl::IsDeadlineExceeded(status) ? RejectReason::kExpired
                         : absl::IsUnavailable(status)    ? RejectReason::kDraining
                                                          : RejectReason::kCancelled);
}

void ProjectionCall::Expire() { (void)EndEarly(LeaveBy::kDeadline); }

OpenFacts ProjectionCall::Facts() const {
  return {.method = absl::StrCat("/fulcrum.v1.ProjectionService/", std::string(Name(method_))),
          .id = call_context_.id,
          .peer = peer_address_,
          .state = "open",
          .began = began};
}

std::optional<OpenFacts> ProjectionCall::CutOff() {
  if (late()) return std::nullopt;
  OpenFacts facts = Facts();
  const std::optional<std::string_view> where = EndEarly(LeaveBy::kDrain);
  if (!where.has_value()) return std::nullopt;
  facts.state = *where;
  if (*where != "admit") facts.id = id;  // while it is being checked, its thread writes the id
  return facts;
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
  if (absl::IsResourceExhausted(status)) return WithRetry(std::move(status), kRetryDelay);
  if (absl::IsDeadlineExceeded(status)) {
    return WithInfo(std::move(status), "DEADLINE_EXCEEDED",
                    {{"stage", std::string(Name(Stage::kQueue))}});
  }
  return status;
}

void ProjectionCall::CountAnswer(const absl::Status& status) {
  node_.metrics.CallAnswered(method_, status.code());
}

void ProjectionCall::Report(const absl::Status& status) {
  const absl::Time now = absl::Now();
  if (arm_ != nullptr) {
    const Phase phase = PhaseOf(shards.front()->family);
    stages_[static_cast<size_t>(Stage::kReply)] = absl::ToDoubleSeconds(now - completed_);
    for (Stage stage : {Stage::kAdmit, Stage::kReply}) {
      node_.metrics.CallStage(*arm_, phase, stage, Seconds(stages_, stage));
    }
  }
  if (!node_.log_calls) return;
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
                          {"seconds", absl::ToDoubleSeconds(now - began)},
                          {"admit", Seconds(stages_, Stage::kAdmit)},
                          {"queue", Seconds(stages_, Stage::kQueue)},
                          {"kernel", Seconds(stages_, Stage::kKernel)},
                          {"reply", Seconds(stages_, Stage::kReply)}});
}

}  // namespace fulcrum::service

// A stream's state machine.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "service/grpc_status.h"

namespace fulcrum::service {
namespace {

constexpr char kDraining[] = "the node is draining; call another node";

}  // namespace

// One call of a stream. Keeps the stream alive, so that a completion after the stream's end has
// somewhere to go.
class ProjectionStream::StreamCall final : public ProjectionCall {
 public:
  StreamCall(ProjectionNode& node, std::shared_ptr<ProjectionStream> stream)
      : ProjectionCall(node, CallMethod::kProjectStream), stream_(std::move(stream)) {
    deadline = stream_->expires;  // it expires with its stream, or in the queue
    peer_address_ = stream_->peer_.address;
    call_context() = stream_->call_context_;
    (void)BeginPreparing();  // its message is here
  }

  // Reads, checks and submits it. Not OK: the bytes are no message and carry no id to answer to, so
  // that the stream cannot go on. `late`: a stop had begun.
  absl::Status Take(const grpc::ByteBuffer& bytes, bool late) {
    absl::Status status;
    bool readable = false;
    const absl::Status thrown = Guarded(node_.events, Thrower::kRpc, [&] {
      status = Parse(bytes);
      readable = status.ok();
      if (status.ok()) status = Check(late);
      if (status.ok()) status = stream_->List(Self());
      if (status.ok()) status = Submit(Self(), OnIdle::kHandOver);
    });
    if (!thrown.ok()) {
      if (place.load() != CallPlace::kOutside) return absl::OkStatus();  // it will be completed
      status = thrown;
    }
    if (!status.ok() && Claim()) readable ? AnswerEarly(status) : Dropped(status);
    return readable ? absl::OkStatus() : status;
  }

  void Complete(const CallResult& result) override {
    if (!Claim()) return;
    absl::Status status = result.status;
    grpc::ByteBuffer bytes;
    const absl::Status thrown = Guarded(node_.events, Thrower::kRpc, [&] {
      NoteResult(result);
      if (!status.ok()) {
        status = ToCaller(std::move(status));
        return;
      }
      std::vector<OutputView> outputs;
      bytes = EncodeStreamResponse(MakeResponse(result, &outputs));
    });
    if (!thrown.ok()) status = thrown;
    status.ok() ? Reply(status, std::move(bytes)) : AnswerEarly(status);
  }

  void AnswerEarly(const absl::Status& status) override {
    grpc::ByteBuffer bytes;
    (void)Guarded(node_.events, Thrower::kRpc,
                  [&] { bytes = EncodeStreamError(id, ToRpcStatus(status)); });
    Reply(status, std::move(bytes));
  }

  // The stream ends, and so does what is in flight on it.
  void EndWithStream(LeaveBy by) {
    (void)Guarded(node_.events, Thrower::kRpc, [&] { (void)EndEarly(by); });
  }
  // Its reply goes to gRPC now, and is gone.
  void Sending() { CountAnswer(status_); }
  void Sent() {
    (void)Guarded(node_.events, Thrower::kRpc, [&] { Report(status_); });
    const std::shared_ptr<OpenCall> last = node_.book.Remove(*this);
  }
  // Nobody is there for a reply: it ends with what the stream ended with, unless it has failed.
  void Dropped(const absl::Status& stream) {
    if (status_.ok()) status_ = stream;
    Sending();
    Sent();
  }

  bool listed = false;  // in in_flight_ under its id

 private:
  std::shared_ptr<StreamCall> Self() {
    return std::static_pointer_cast<StreamCall>(shared_from_this());
  }
  absl::Status Check(bool late) {
    id = request().call_id;
    if (id.empty()) {
      return InvalidField("call_id",
                          "expected an id that no call in flight on this stream has, got none");
    }
    if (late) {
      node_.metrics.OnReject(RejectReason::kDraining);
      return absl::UnavailableError(kDraining);
    }
    return Prepare(stream_->peer_);
  }
  void Reply(const absl::Status& status, grpc::ByteBuffer bytes) {
    status_ = status;
    stream_->Answer(Self(), std::move(bytes));
  }

  const std::shared_ptr<ProjectionStream> stream_;
  absl::Status status_;
};

ProjectionStream::ProjectionStream(ProjectionNode& node, int method,
                                   grpc::CallbackServerContext* context)
    : node_(node), peer_(node.authorizer.PeerOf(*context)) {
  kind = OpenKind::kStream;
  metric = method;
  began = absl::Now();
  expires = DeadlineOf(*context);
}

ProjectionStream* ProjectionStream::Start(ProjectionNode& node, int metric,
                                          grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<ProjectionStream>(node, metric, context);
  absl::Status status = ReadCallContext(*context, &stream->call_context_);
  EchoCallContext(stream->call_context_.id, stream->call_context_, context);
  const bool late = !node.book.Add(stream);
  node.metrics.GrpcStarted(metric);
  const absl::Status thrown = Guarded(node.events, Thrower::kRpc, [&] {
    if (late) status = absl::UnavailableError(kDraining);
    if (status.ok()) status = node.authorizer.CheckCaller(stream->peer_);
  });
  if (!thrown.ok()) status = thrown;
  // A client that waits for the first reply before it sends must still see the stream open.
  stream->StartSendInitialMetadata();
  if (status.ok()) {
    stream->Pump();
    return stream.get();
  }
  const auto refuse = [stream, status] { (void)stream->Abort(status, LeaveBy::kDrain); };
  if (!late || !Guarded(node.events, Thrower::kRpc, [&] { node.parting.Answer(refuse); }).ok()) {
    refuse();
  }
  return stream.get();
}

void ProjectionStream::OnReadDone(bool ok) {
  const std::shared_ptr<ProjectionStream> keep = Self();
  absl::Status status;
  if (ok) {
    {
      absl::MutexLock lock(&mu_);
      reading_message_ = true;
    }
    const absl::Status thrown = Guarded(node_.events, Thrower::kRpc, [&] { status = Accept(); });
    if (!thrown.ok()) status = thrown;
  }
  {
    absl::MutexLock lock(&mu_);
    reading_ = false;
    reading_message_ = false;
    if (!ok) read_closed_ = true;
  }
  if (!status.ok()) {
    (void)Abort(std::move(status), LeaveBy::kCaller);
  } else {
    Pump();
  }
}

absl::Status ProjectionStream::Accept() {
  const auto call = std::make_shared<StreamCall>(node_, Self());
  const bool late = !node_.book.Add(call);
  const absl::Status status = call->Take(read_buffer_, late);
  read_buffer_.Clear();
  return status;
}

absl::Status ProjectionStream::List(const std::shared_ptr<StreamCall>& call) {
  absl::MutexLock lock(&mu_);
  if (aborted_) return absl::CancelledError("the stream ended");
  call->listed = in_flight_.emplace(call->id, call).second;
  if (!call->listed) {
    return InvalidField("call_id",
                        "expected an id that no call in flight on this stream has, got that of "
                        "one");
  }
  reserved_bytes_ += call->payload_bytes;
  return absl::OkStatus();
}

void ProjectionStream::Answer(std::shared_ptr<StreamCall> call, grpc::ByteBuffer bytes) {
  absl::Status no_room = bytes.Valid() ? absl::OkStatus() : StatusForNoMemory();
  std::optional<absl::Status> over;
  {
    absl::MutexLock lock(&mu_);
    const int64_t reserved = call->listed ? call->payload_bytes : 0;
    if (call->listed) in_flight_.erase(call->id);
    over = aborted_;
    if (!over.has_value() && no_room.ok()) {
      no_room =
          Caught([&] { replies_.push_back({.bytes = bytes, .reserved = reserved, .call = call}); });
    }
    if (over.has_value() || !no_room.ok()) reserved_bytes_ -= reserved;
  }
  if (over.has_value()) {
    call->Dropped(*over);
  } else if (!no_room.ok()) {
    call->Dropped(no_room);
    (void)Abort(no_room, LeaveBy::kCaller);
  }
  call.reset();
  Pump();
}

void ProjectionStream::OnWriteDone(bool ok) {
  const std::shared_ptr<ProjectionStream> keep = Self();
  Reply sent = std::move(writing_reply_);
  sent.call->Sent();
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    reserved_bytes_ -= sent.reserved;
  }
  if (!ok) CallerLeft();
  Pump();
}

void ProjectionStream::OnCancel() {
  const std::shared_ptr<ProjectionStream> keep = Self();
  CallerLeft();
}

void ProjectionStream::CallerLeft() {
  absl::Status status;
  const absl::Status thrown = Guarded(node_.events, Thrower::kRpc, [&] {
    status = CallersTimeIsOver(expires, began, absl::Now())
                 ? absl::DeadlineExceededError("the deadline of the stream passed")
                 : absl::CancelledError("the client cancelled the stream");
  });
  (void)Abort(thrown.ok() ? status : thrown, LeaveBy::kCaller);
}

void ProjectionStream::Expire() {
  (void)Abort(absl::DeadlineExceededError("the deadline of the stream passed"), LeaveBy::kDeadline);
}

OpenFacts ProjectionStream::Facts() const {
  return {.method = "/fulcrum.v1.ProjectionService/ProjectStream",
          .id = call_context_.id,
          .peer = peer_.address,
          .state = "open",
          .began = began};
}

std::optional<OpenFacts> ProjectionStream::CutOff() {
  if (late()) return std::nullopt;
  OpenFacts facts = Facts();
  if (!Abort(absl::UnavailableError(kDraining), LeaveBy::kDrain)) return std::nullopt;
  return facts;
}

bool ProjectionStream::Abort(const absl::Status& status, LeaveBy by) {
  decltype(in_flight_) ending;
  std::deque<Reply> unsent;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_) return false;
    aborted_ = status;
    ending.swap(in_flight_);
    unsent.swap(replies_);
    for (const Reply& reply : unsent) reserved_bytes_ -= reply.reserved;
  }
  for (const Reply& reply : unsent) reply.call->Dropped(status);
  for (const auto& [id, call] : ending) call->EndWithStream(by);
  Pump();
  return true;
}

void ProjectionStream::StopBegan() {
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
  }
  Pump();
}

void ProjectionStream::Pump() {
  const std::shared_ptr<ProjectionStream> keep = Self();
  for (;;) {
    Action action;
    absl::Status last;
    {
      absl::MutexLock lock(&mu_);
      if (pumping_) return;  // the thread that pumps looks again before it stops
      action = NextAction();
      if (action == Action::kNone) return;
      pumping_ = true;
      last = final_status_;
    }
    (void)Guarded(node_.events, Thrower::kRpc, [&] { Do(action, last); });
    absl::MutexLock lock(&mu_);
    pumping_ = false;
  }
}

void ProjectionStream::Do(Action action, const absl::Status& last) {
  switch (action) {
    case Action::kRead:
      StartRead(&read_buffer_);
      break;
    case Action::kWrite:
      writing_reply_.call->Sending();
      StartWrite(&writing_reply_.bytes);
      break;
    case Action::kFinish: {
      grpc::Status status(static_cast<grpc::StatusCode>(last.code()), "");
      (void)Guarded(node_.events, Thrower::kRpc, [&] { status = ToGrpc(last); });
      Finish(std::move(status));
      break;
    }
    case Action::kNone:
      break;
  }
}

ProjectionStream::Action ProjectionStream::NextAction() {
  if (finished_) return Action::kNone;
  if (!writing_) {  // writes are one at a time, and the end comes after the last
    if (aborted_) {
      finished_ = true;
      final_status_ = *aborted_;
      return Action::kFinish;
    }
    if (!replies_.empty()) {
      writing_reply_ = std::move(replies_.front());
      replies_.pop_front();
      writing_ = true;
      return Action::kWrite;
    }
    if (in_flight_.empty() && !reading_message_ && (read_closed_ || draining_)) {
      finished_ = true;
      if (!read_closed_) final_status_ = absl::UnavailableError(kDraining);
      aborted_ = final_status_;  // a message read from now on has no reply to go to
      return Action::kFinish;
    }
  }
  if (aborted_ || reading_ || read_closed_ || draining_ || !HasRoom()) return Action::kNone;
  reading_ = true;
  return Action::kRead;
}

bool ProjectionStream::HasRoom() const {
  const LimitsConfig& limits = node_.rules.limits;
  const size_t calls = in_flight_.size() + replies_.size() + (writing_ ? 1 : 0);
  return calls < static_cast<size_t>(limits.max_stream_calls) &&
         reserved_bytes_ < limits.max_message_bytes;
}

void ProjectionStream::OnDone() {
  absl::StatusCode code;
  {
    absl::MutexLock lock(&mu_);
    code = final_status_.code();
  }
  node_.metrics.GrpcHandled(metric, code);
  node_.metrics.GrpcTook(metric, absl::ToDoubleSeconds(absl::Now() - began));
  const std::shared_ptr<OpenCall> last = node_.book.Remove(*this);
}

}  // namespace fulcrum::service

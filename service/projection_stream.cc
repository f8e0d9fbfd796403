// A stream's state machine.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_stream.h"

#include <cassert>
#include <utility>

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
      : ProjectionCall(node, CallMethod::kProjectStream), stream_(std::move(stream)) {}

  void Complete(const CallResult& result) override {
    NoteResult(result);
    if (!result.status.ok()) return Fail(ToCaller(result.status));
    CountAnswer(status_);
    std::vector<OutputView> outputs;
    stream_->Answer(std::exchange(self, nullptr),
                    EncodeStreamResponse(MakeResponse(result, &outputs)));
  }

  void Fail(absl::Status status) {
    status_ = std::move(status);
    CountAnswer(status_);
    stream_->Answer(std::exchange(self, nullptr), EncodeStreamError(id, ToRpcStatus(status_)));
  }
  absl::Status Refused(absl::Status status) const { return ToCaller(std::move(status)); }
  void Sent() { Report(status_); }
  // Of a call that has no reply of its own.
  void Dropped(const absl::Status& status) {
    CountAnswer(status);
    Report(status);
  }

  // Its own share between Submit and Complete, which the scheduler's interface does not hand back.
  std::shared_ptr<StreamCall> self;
  bool listed = false;  // in in_flight_ under its id

 private:
  const std::shared_ptr<ProjectionStream> stream_;
  absl::Status status_;
};

ProjectionStream::ProjectionStream(ProjectionNode& node, StreamRegistry& registry, int metric,
                                   grpc::CallbackServerContext* context)
    : node_(node),
      registry_(registry),
      metric_(metric),
      context_(context),
      started_(absl::Now()),
      peer_(node.authorizer.PeerOf(*context)) {}

ProjectionStream* ProjectionStream::Start(ProjectionNode& node, StreamRegistry& registry,
                                          int metric, grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<ProjectionStream>(node, registry, metric, context);
  stream->self_ = stream;
  node.metrics.GrpcStarted(metric);
  absl::Status status = ReadCallContext(*context, &stream->call_context_);
  EchoCallContext(stream->call_context_.id, stream->call_context_, context);
  if (status.ok()) status = node.health.CheckNode();
  if (status.ok()) status = node.authorizer.CheckCaller(stream->peer_);
  // A client that waits for the first reply before it sends must still see the stream open.
  stream->StartSendInitialMetadata();
  if (!status.ok() && node.health.draining()) {
    node.parting.Answer([stream, status] { stream->Abort(status); });
    return stream.get();
  }
  registry.Add(stream);
  if (status.ok()) {
    stream->Pump();
  } else {
    stream->Abort(std::move(status));
  }
  return stream.get();
}

void ProjectionStream::OnReadDone(bool ok) {
  const std::shared_ptr<ProjectionStream> keep = self_;
  absl::Status status;
  if (ok) {
    {
      absl::MutexLock lock(&mu_);
      reading_message_ = true;
    }
    status = Accept();
  }
  {
    absl::MutexLock lock(&mu_);
    reading_ = false;
    reading_message_ = false;
    if (!ok) read_closed_ = true;
  }
  if (!status.ok()) return Abort(std::move(status));
  Pump();
}

absl::Status ProjectionStream::Accept() {
  auto call = std::make_shared<StreamCall>(node_, shared_from_this());
  call->call_context() = call_context_;
  // Bytes that are no message carry no id to answer to: the stream cannot go on.
  absl::Status parsed = call->Parse(read_buffer_);
  read_buffer_.Clear();
  if (!parsed.ok()) {
    call->Dropped(parsed);
    return parsed;
  }
  call->id = call->request().call_id;
  if (call->id.empty()) {
    Submit(std::move(call),
           InvalidField("call_id",
                        "expected an id that no call in flight on this stream has, got "
                        "none"));
    return absl::OkStatus();
  }
  absl::Status status = call->Prepare(*context_, peer_);
  Submit(std::move(call), std::move(status));
  return absl::OkStatus();
}

void ProjectionStream::Submit(std::shared_ptr<StreamCall> call, absl::Status status) {
  StreamCall& c = *call;
  c.self = call;
  {
    absl::MutexLock lock(&mu_);
    if (status.ok() && aborted_) status = absl::CancelledError("the stream ended");
    if (status.ok()) {
      c.listed = in_flight_.try_emplace(c.id, call).second;
      if (c.listed) {
        reserved_bytes_ += c.payload_bytes;
      } else {
        status = InvalidField("call_id",
                              "expected an id that no call in flight on this stream has, "
                              "got that of one");
      }
    }
  }
  if (status.ok()) {
    std::shared_ptr<Call> submitted = call;
    status = c.Refused(node_.scheduler.Submit(submitted));
    if (status.ok()) {
      // An abort between listing and submitting found nothing to cancel.
      bool aborted;
      {
        absl::MutexLock lock(&mu_);
        aborted = aborted_.has_value();
      }
      if (aborted) node_.scheduler.Cancel(&c);
      return;
    }
  }
  c.Fail(std::move(status));
}

void ProjectionStream::Answer(std::shared_ptr<StreamCall> call, const grpc::ByteBuffer& bytes) {
  std::shared_ptr<StreamCall> dropped;
  {
    absl::MutexLock lock(&mu_);
    Reply reply{.bytes = bytes, .reserved = 0, .call = std::move(call)};
    if (reply.call->listed) {
      reply.reserved = reply.call->payload_bytes;
      in_flight_.erase(reply.call->id);
    }
    if (aborted_) {
      reserved_bytes_ -= reply.reserved;
      dropped = std::move(reply.call);
    } else {
      replies_.push_back(std::move(reply));
    }
  }
  if (dropped != nullptr) dropped->Sent();
  Pump();
}

void ProjectionStream::OnWriteDone(bool ok) {
  const std::shared_ptr<ProjectionStream> keep = self_;
  Reply sent = std::move(writing_reply_);
  sent.call->Sent();
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    reserved_bytes_ -= sent.reserved;
  }
  if (!ok) return Abort(absl::CancelledError("the client went away"));
  Pump();
}

void ProjectionStream::OnCancel() {
  const std::shared_ptr<ProjectionStream> keep = shared_from_this();
  Abort(absl::CancelledError("the client cancelled the stream, or its deadline passed"));
}

void ProjectionStream::Abort(absl::Status status) {
  std::vector<std::shared_ptr<StreamCall>> cancelled;
  std::deque<Reply> unsent;
  {
    absl::MutexLock lock(&mu_);
    if (!aborted_) aborted_ = std::move(status);
    for (const auto& [id, call] : in_flight_) cancelled.push_back(call);
    unsent.swap(replies_);
    for (const Reply& reply : unsent) reserved_bytes_ -= reply.reserved;
  }
  for (const Reply& reply : unsent) reply.call->Sent();
  for (const auto& call : cancelled) node_.scheduler.Cancel(call.get());
  Pump();
}

void ProjectionStream::Drain() {
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
  }
  Pump();
}

void ProjectionStream::Pump() {
  const std::shared_ptr<ProjectionStream> keep = shared_from_this();
  for (;;) {
    Action action;
    grpc::Status status;
    {
      absl::MutexLock lock(&mu_);
      if (pumping_) return;  // the thread that pumps looks again before it stops
      action = NextAction();
      if (action == Action::kNone) return;
      pumping_ = true;
      if (action == Action::kFinish) status = ToGrpc(final_status_);
    }
    switch (action) {
      case Action::kRead:
        StartRead(&read_buffer_);
        break;
      case Action::kWrite:
        StartWrite(&writing_reply_.bytes);
        break;
      case Action::kFinish:
        Finish(std::move(status));
        break;
      case Action::kNone:
        break;
    }
    absl::MutexLock lock(&mu_);
    pumping_ = false;
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
  const std::shared_ptr<ProjectionStream> last = std::move(self_);
  absl::StatusCode code;
  {
    absl::MutexLock lock(&mu_);
    code = final_status_.code();
  }
  node_.metrics.GrpcHandled(metric_, code);
  node_.metrics.GrpcTook(metric_, absl::ToDoubleSeconds(absl::Now() - started_));
  registry_.Remove(this);  // the last use of the node
}

StreamRegistry::~StreamRegistry() {
  absl::MutexLock lock(&mu_);  // after the last Remove
  assert(streams_.empty());
}

void StreamRegistry::Add(const std::shared_ptr<ProjectionStream>& stream) {
  bool draining;
  {
    absl::MutexLock lock(&mu_);
    streams_[stream.get()] = stream;
    draining = draining_;
  }
  if (draining) stream->Drain();
}

void StreamRegistry::Remove(const ProjectionStream* stream) {
  absl::MutexLock lock(&mu_);
  streams_.erase(stream);
}

void StreamRegistry::Drain() {
  std::vector<std::shared_ptr<ProjectionStream>> live;
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    for (const auto& [key, weak] : streams_) {
      if (auto stream = weak.lock()) live.push_back(std::move(stream));
    }
  }
  for (const auto& stream : live) stream->Drain();
}

}  // namespace fulcrum::service

// ProjectStream and its reactor.
// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/project_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/status.h"
#include "client/cpp/stream_reactor.h"

namespace fulcrum::client {

void ProjectStream::Reactor::Start(std::shared_ptr<Reactor> self) {
  {
    absl::MutexLock lock(&mu_);
    self_ = std::move(self);
  }
  stub_->async()->ProjectStream(&context_, this);
  AddHold();
  StartRead(&reply_);
  StartCall();
}

absl::Status ProjectStream::Reactor::Send(v1::ProjectRequest request, Done done, int max_in_flight,
                                          bool wait) {
  absl::MutexLock lock(&mu_);
  const auto may_go = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return writes_closed_ || finishing_ || pending_.size() < static_cast<size_t>(max_in_flight);
  };
  if (wait) {
    while (!may_go()) changed_.Wait(&mu_);
  } else if (!may_go()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "stream: ", pending_.size(), " calls are in flight, the most it was opened for"));
  }
  if (finishing_) return absl::FailedPreconditionError("stream: Finish was called");
  if (writes_closed_) {
    return status_.ok() ? absl::UnavailableError("stream: the node ended it; open another")
                        : status_;
  }
  if (request.call_id().empty()) request.set_call_id(absl::StrCat("s", ++next_id_));
  if (!pending_.try_emplace(request.call_id(), std::move(done)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("stream: call_id \"", request.call_id(), "\" is in flight; ids must differ"));
  }
  outbox_.push_back(std::move(request));
  if (!writing_) WriteNext();
  return absl::OkStatus();
}

void ProjectStream::Reactor::WriteNext() {
  if (outbox_.empty()) {
    if (finishing_ && !writes_closed_) {
      StartWritesDone();
      CloseWrites();
    }
    return;
  }
  writing_ = true;
  StartWrite(&outbox_.front());
}

void ProjectStream::Reactor::CloseWrites() {
  if (std::exchange(writes_closed_, true)) return;
  changed_.SignalAll();
  RemoveHold();
}

void ProjectStream::Reactor::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  outbox_.pop_front();
  if (!ok) {
    outbox_.clear();
    CloseWrites();
  } else if (!writes_closed_) {
    WriteNext();
  }
}

void ProjectStream::Reactor::OnReadDone(bool ok) {
  if (!ok) {
    absl::MutexLock lock(&mu_);
    CloseWrites();
    return;
  }
  v1::ProjectStreamResponse reply;
  reply.Swap(&reply_);
  Done done;
  {
    absl::MutexLock lock(&mu_);
    const auto found = pending_.find(reply.call_id());
    if (found != pending_.end()) {
      done = std::move(found->second);
      pending_.erase(found);
      changed_.SignalAll();
    }
  }
  // A reply to no call in flight has nobody to hear it; the call it should have answered gets the
  // stream's end.
  if (done) {
    if (reply.has_error()) {
      absl::Status error = FromRpcStatus(reply.error());
      if (error.ok()) error = absl::InternalError("stream: the node sent an error with code OK");
      std::move(done)(std::move(error));
    } else {
      std::move(done)(std::move(*reply.mutable_response()));
    }
  }
  StartRead(&reply_);
}

void ProjectStream::Reactor::OnDone(const grpc::Status& status) {
  absl::flat_hash_map<std::string, Done> unanswered;
  absl::Status ended = FromGrpc(status, context_);
  {
    absl::MutexLock lock(&mu_);
    writes_closed_ = true;
    status_ = ended;
    unanswered.swap(pending_);
    changed_.SignalAll();
  }
  if (ended.ok()) ended = absl::UnavailableError("stream: the node ended it before this reply");
  for (auto& [id, done] : unanswered) std::move(done)(ended);
  std::shared_ptr<Reactor> self;  // the last reference may go with it, after the lock
  absl::MutexLock lock(&mu_);
  self = std::move(self_);
  done_ = true;
  changed_.SignalAll();
}

absl::Status ProjectStream::Reactor::Finish() {
  absl::MutexLock lock(&mu_);
  if (!std::exchange(finishing_, true) && !writing_ && !writes_closed_) WriteNext();
  changed_.SignalAll();  // those who wait for room in Send
  while (!done_) changed_.Wait(&mu_);
  return status_;
}

int ProjectStream::Reactor::in_flight() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(pending_.size());
}

ProjectStream::ProjectStream(std::shared_ptr<Reactor> reactor, int max_in_flight)
    : reactor_(std::move(reactor)), max_in_flight_(max_in_flight < 1 ? 1 : max_in_flight) {}

ProjectStream::~ProjectStream() {
  reactor_->Cancel();
  (void)reactor_->Finish();
}

absl::Status ProjectStream::Send(v1::ProjectRequest request, Done done) {
  return reactor_->Send(std::move(request), std::move(done), max_in_flight_, /*wait=*/true);
}

absl::Status ProjectStream::TrySend(v1::ProjectRequest request, Done done) {
  return reactor_->Send(std::move(request), std::move(done), max_in_flight_, /*wait=*/false);
}

std::future<ProjectStream::Result> ProjectStream::Send(v1::ProjectRequest request) {
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> future = promise->get_future();
  absl::Status taken =
      Send(std::move(request), [promise](Result result) { promise->set_value(std::move(result)); });
  if (!taken.ok()) promise->set_value(std::move(taken));
  return future;
}

absl::Status ProjectStream::Finish() { return reactor_->Finish(); }
void ProjectStream::Cancel() { reactor_->Cancel(); }
int ProjectStream::in_flight() const { return reactor_->in_flight(); }

}  // namespace fulcrum::client

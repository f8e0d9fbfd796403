// One ProjectStream RPC: many calls in flight, replies in the order in which they finish. Bounded:
// calls in flight and replies not yet sent together stay under the node's limits of calls and
// bytes; at the bound the stream is not read, so a fast sender or a slow reader is held back by
// HTTP/2 flow control and nothing grows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "scheduler/name_map.h"
#include "service/projection_call.h"

namespace fulcrum::service {

// Shared by the book, which stands for gRPC (until OnDone), and the calls on it.
class ProjectionStream final : public OpenCall,
                               public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static ProjectionStream* Start(ProjectionNode& node, int metric,
                                 grpc::CallbackServerContext* context);
  ProjectionStream(ProjectionNode& node, int metric, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // OpenCall. After StopBegan it reads no more, and ends with UNAVAILABLE once what is in flight is
  // answered.
  void Expire() override;
  void StopBegan() override;
  std::optional<OpenFacts> CutOff() override;
  OpenFacts Facts() const override;

 private:
  class StreamCall;
  struct Reply {
    grpc::ByteBuffer bytes;
    int64_t reserved = 0;  // of the byte bound, until it is written
    std::shared_ptr<StreamCall> call;
  };
  enum class Action { kNone, kRead, kWrite, kFinish };

  std::shared_ptr<ProjectionStream> Self() {
    return std::static_pointer_cast<ProjectionStream>(shared_from_this());
  }
  // Takes one message off the stream; a status ends the stream.
  absl::Status Accept();
  // Lists a call under its id; not OK: it is not listed.
  absl::Status List(const std::shared_ptr<StreamCall>& call);
  // A call's one answer; it is dropped where the stream is over. Throws nothing.
  void Answer(std::shared_ptr<StreamCall> call, grpc::ByteBuffer bytes);
  void CallerLeft();
  // Ends the stream with `status` as soon as no write is under way, and its calls in flight as `by`
  // says. False when it was over already. Throws nothing.
  bool Abort(const absl::Status& status, LeaveBy by);
  // Starts what can be started, one thread at a time: gRPC's operations are made in a fixed order
  // and never under the lock.
  void Pump();
  void Do(Action action, const absl::Status& last);
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ProjectionNode& node_;
  const Peer peer_;
  CallContext call_context_;

  grpc::ByteBuffer read_buffer_;  // gRPC's while a read is under way
  Reply writing_reply_;           // gRPC's while a write is under way

  absl::Mutex mu_;
  NameMap<std::shared_ptr<StreamCall>> in_flight_ ABSL_GUARDED_BY(mu_);
  std::deque<Reply> replies_ ABSL_GUARDED_BY(mu_);
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // until what was read is listed or answered
  bool reading_message_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool read_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool pumping_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> aborted_ ABSL_GUARDED_BY(mu_);
  absl::Status final_status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fulcrum::service

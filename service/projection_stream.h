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
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "service/projection_call.h"

namespace fulcrum::service {

class StreamRegistry;

class ProjectionStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                               public std::enable_shared_from_this<ProjectionStream> {
 public:
  static ProjectionStream* Start(ProjectionNode& node, StreamRegistry& registry, int metric,
                                 grpc::CallbackServerContext* context);
  ProjectionStream(ProjectionNode& node, StreamRegistry& registry, int metric,
                   grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // No further reads; ends with UNAVAILABLE once what is in flight is answered.
  void Drain();

 private:
  class StreamCall;
  struct Reply {
    grpc::ByteBuffer bytes;
    int64_t reserved = 0;              // of the byte bound, until it is written
    std::shared_ptr<StreamCall> call;  // reported when the reply is on its way
  };
  enum class Action { kNone, kRead, kWrite, kFinish };

  // Takes one message off the stream; a status ends the stream.
  absl::Status Accept();
  void Submit(std::shared_ptr<StreamCall> call, absl::Status status);
  void Answer(std::shared_ptr<StreamCall> call, const grpc::ByteBuffer& bytes);
  // Ends the stream with `status` as soon as no write is under way; calls in flight are cancelled.
  void Abort(absl::Status status);
  // Starts what can be started, one thread at a time: gRPC's operations are made in a fixed order
  // and never under the lock.
  void Pump();
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ProjectionNode& node_;
  StreamRegistry& registry_;
  const int metric_;
  grpc::CallbackServerContext* const context_;
  const absl::Time started_;
  Peer peer_;
  CallContext call_context_;
  std::shared_ptr<ProjectionStream> self_;  // gRPC's share, until OnDone

  grpc::ByteBuffer read_buffer_;  // gRPC's while a read is under way
  Reply writing_reply_;           // gRPC's while a write is under way

  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<StreamCall>> in_flight_ ABSL_GUARDED_BY(mu_);
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

// The node's live streams, so that a drain can end idle ones. Thread-safe.
class StreamRegistry {
 public:
  ~StreamRegistry();  // after the server's shutdown: no stream is left

  void Add(const std::shared_ptr<ProjectionStream>& stream);
  void Remove(const ProjectionStream* stream);
  void Drain();  // every stream, and those that still come

 private:
  absl::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<const ProjectionStream*, std::weak_ptr<ProjectionStream>> streams_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace fulcrum::service

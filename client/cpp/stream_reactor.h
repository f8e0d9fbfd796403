// The gRPC side of a ProjectStream: writes one request at a time, reads replies, pairs them by
// call_id. Private to the library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/project_stream.h"
#include "fulcrum/v1/projection_service.grpc.pb.h"

namespace fulcrum::client {

// Keeps itself alive from Start until gRPC's OnDone. A hold keeps the stream open for writes from
// outside of gRPC's callbacks; it is dropped, under the lock, in the moment that no further write
// can start.
class ProjectStream::Reactor final
    : public grpc::ClientBidiReactor<v1::ProjectRequest, v1::ProjectStreamResponse> {
 public:
  // `keep` is whatever must outlive the stream (the channel's owner).
  Reactor(std::shared_ptr<void> keep, std::unique_ptr<v1::ProjectionService::Stub> stub)
      : keep_(std::move(keep)), stub_(std::move(stub)) {}

  grpc::ClientContext& context() { return context_; }
  void Start(std::shared_ptr<Reactor> self) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status Send(v1::ProjectRequest request, Done done, int max_in_flight, bool wait)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel() { context_.TryCancel(); }
  int in_flight() const ABSL_LOCKS_EXCLUDED(mu_);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseWrites() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<void> keep_;
  const std::unique_ptr<v1::ProjectionService::Stub> stub_;
  grpc::ClientContext context_;
  v1::ProjectStreamResponse reply_;  // gRPC's between StartRead and OnReadDone

  mutable absl::Mutex mu_;
  absl::CondVar changed_;  // what Send and Finish wait for
  std::shared_ptr<Reactor> self_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Done> pending_ ABSL_GUARDED_BY(mu_);
  // Front is being written when writing_; elements stay in place while gRPC reads them.
  std::deque<v1::ProjectRequest> outbox_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;  // Finish was called: half-close when written
  bool writes_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace fulcrum::client

// One Project RPC, from its headers: to gRPC it is a stream of one message each way, as which gRPC
// hands a call over before its message is here. So a call whose message does not come is in the
// book, has a deadline, can be refused at once, and may finish after a stop began.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "grpcpp/grpcpp.h"
#include "service/projection_call.h"

namespace fulcrum::service {

// Shared by the book, which stands for gRPC (until OnDone), and the scheduler (until after
// Complete): whichever lets go last frees it, so neither a late completion nor a late cancel can
// touch a dead call.
class UnaryCall final : public ProjectionCall,
                        public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static UnaryCall* Start(ProjectionNode& node, int metric, grpc::CallbackServerContext* context);
  UnaryCall(ProjectionNode& node, int metric, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  // OnCancel is short and never blocks, so gRPC may run it where it is instead of waking a thread.
  bool InternalInlineable() override { return true; }

  void Complete(const CallResult& result) override;

 private:
  // What can be said of a call before its message: refusals are answers.
  absl::Status CheckHeaders(bool late);
  absl::Status TakeMessage();
  void AnswerEarly(const absl::Status& status) override;
  // By who claimed the right to it. Throws nothing.
  void End(const absl::Status& status);

  grpc::CallbackServerContext* const context_;
  Peer peer_;
  grpc::ByteBuffer message_, reply_;
  absl::Status status_;
};

}  // namespace fulcrum::service

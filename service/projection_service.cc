// The unary reactor, and the start of both methods.
// SPDX-License-Identifier: Apache-2.0
#include "service/projection_service.h"

#include <utility>
#include <vector>

#include "service/projection_stream.h"

namespace fulcrum::service {
namespace {

constexpr char kProjectName[] = "/fulcrum.v1.ProjectionService/Project";
constexpr char kStreamName[] = "/fulcrum.v1.ProjectionService/ProjectStream";

// One Project RPC. Shared by gRPC (until OnDone) and the scheduler (until after Complete): whoever
// lets go last frees it, so neither a late completion nor a late cancel can touch a dead call.
class UnaryCall final : public ProjectionCall, public grpc::ServerUnaryReactor {
 public:
  UnaryCall(ProjectionNode& node, int metric, grpc::CallbackServerContext* context,
            grpc::ByteBuffer* response)
      : ProjectionCall(node, CallMethod::kProject),
        metric_(metric),
        context_(context),
        response_(response) {
    node_.metrics.GrpcStarted(metric_);
  }

  static grpc::ServerUnaryReactor* Start(const std::shared_ptr<UnaryCall>& call,
                                         const grpc::ByteBuffer& bytes) {
    UnaryCall& self = *call;
    self.self_ = call;
    absl::Status status = self.Begin(bytes);
    if (status.ok()) {
      std::shared_ptr<Call> submitted = call;
      status = self.ToCaller(self.node_.scheduler.Submit(submitted, OnIdle::kRunHere));
    }
    if (status.ok()) return &self;
    if (self.node_.health.draining()) {
      self.node_.parting.Answer([call, status] { call->End(status); });
    } else {
      self.End(std::move(status));
    }
    return &self;
  }

  void Complete(const CallResult& result) override {
    NoteResult(result);
    if (!result.status.ok()) return End(ToCaller(result.status));
    std::vector<OutputView> outputs;
    *response_ = EncodeProjectResponse(MakeResponse(result, &outputs));
    End(absl::OkStatus());
  }

  void OnCancel() override { node_.scheduler.Cancel(this); }

  void OnDone() override {
    node_.metrics.GrpcTook(metric_, absl::ToDoubleSeconds(Report(status_) - arrived));
    self_.reset();
  }

  // OnDone and OnCancel are short and never block, so gRPC may run them where it is, as it does for
  // its own default reactor, instead of waking a thread for each.
  bool InternalInlineable() override { return true; }

 private:
  absl::Status Begin(const grpc::ByteBuffer& bytes) {
    // gRPC calls the handler without a message when the call has ended already.
    if (!bytes.Valid()) return WithoutMessage(*context_);
    absl::Status status = ReadCallContext(*context_, &call_context());
    if (status.ok()) status = Parse(bytes);
    const Peer peer = node_.authorizer.PeerOf(*context_);
    if (status.ok()) status = Prepare(*context_, peer);
    EchoCallContext(id, call_context(), context_);
    return status;
  }

  void End(absl::Status status) {
    status_ = std::move(status);
    CountAnswer(status_);
    node_.metrics.GrpcHandled(metric_, status_.code());
    Finish(ToGrpc(status_));
  }

  const int metric_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  absl::Status status_;
  std::shared_ptr<UnaryCall> self_;  // gRPC's share
};

}  // namespace

ProjectionServiceImpl::ProjectionServiceImpl(ProjectionNode& node)
    : node_(node),
      streams_(std::make_unique<StreamRegistry>()),
      project_metric_(node.metrics.GrpcMethod(kProjectName)),
      stream_metric_(node.metrics.GrpcMethod(kStreamName)) {}

ProjectionServiceImpl::~ProjectionServiceImpl() = default;

grpc::ServerUnaryReactor* ProjectionServiceImpl::Project(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* response) {
  return UnaryCall::Start(std::make_shared<UnaryCall>(node_, project_metric_, context, response),
                          *request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ProjectionServiceImpl::ProjectStream(
    grpc::CallbackServerContext* context) {
  return ProjectionStream::Start(node_, *streams_, stream_metric_, context);
}

void ProjectionServiceImpl::DrainStreams() { streams_->Drain(); }

}  // namespace fulcrum::service

// One RPC's record, and the interceptor that makes it.
// SPDX-License-Identifier: Apache-2.0
#include "service/rpc_interceptor.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "grpcpp/grpcpp.h"
#include "service/call_context.h"
#include "service/grpc_status.h"
#include "service/projection_call.h"

namespace fulcrum::service {
namespace {

using grpc::experimental::InterceptionHookPoints;

// Holds a share of gRPC's call, so that ending it touches nothing that is gone.
class OtherRpc final : public OpenCall {
 public:
  OtherRpc(const char* method, int index, bool stream, grpc::ServerContextBase& context)
      : method_(method), call_(context.c_call()), peer_(context.peer()) {
    kind = stream ? OpenKind::kStream : OpenKind::kOther;
    metric = index;
    began = absl::Now();
    expires = DeadlineOf(context);
    const auto id = context.client_metadata().find(kCallIdKey);
    if (id != context.client_metadata().end()) {
      id_.assign(id->second.data(), std::min(id->second.size(), kMaxCallIdBytes));
    }
    grpc_call_ref(call_);
  }
  ~OtherRpc() override { grpc_call_unref(call_); }

  void Expire() override {
    (void)End(absl::DeadlineExceededError(
        "deadline passed before the node had answered; what it was asked to change may still "
        "change"));
  }
  std::optional<OpenFacts> CutOff() override {
    OpenFacts facts = Facts();
    facts.state = kind == OpenKind::kStream ? "open" : "running";
    if (!End(absl::UnavailableError("the node stopped before it had answered"))) {
      return std::nullopt;
    }
    return facts;
  }
  OpenFacts Facts() const override {
    return {.method = method_, .id = id_, .peer = peer_, .state = "open", .began = began};
  }

  // The service is about to send `code`. What is sent instead, if the RPC was ended before.
  std::optional<absl::Status> Answer(absl::StatusCode code) {
    absl::MutexLock lock(&mu_);
    if (ended_.has_value()) return ended_;
    code_ = code;
    answered_ = true;
    return std::nullopt;
  }
  absl::StatusCode code() const {
    absl::MutexLock lock(&mu_);
    return ended_.has_value() ? ended_->code() : code_;
  }

 private:
  bool End(const absl::Status& status) {
    {
      absl::MutexLock lock(&mu_);
      if (answered_ || ended_.has_value()) return false;
      ended_ = status;
    }
    const std::string text(status.message());
    grpc_call_cancel_with_status(call_, static_cast<grpc_status_code>(status.code()), text.c_str(),
                                 nullptr);
    return true;
  }

  const std::string method_;
  grpc_call* const call_;
  const std::string peer_;
  std::string id_;
  mutable absl::Mutex mu_;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  absl::StatusCode code_ ABSL_GUARDED_BY(mu_) = absl::StatusCode::kCancelled;  // until it answers
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mu_);
};

class RpcInterceptor final : public grpc::experimental::Interceptor {
 public:
  RpcInterceptor(Metrics& metrics, CallBook& book, Observer& events, int method, bool stream,
                 grpc::experimental::ServerRpcInfo& info)
      : metrics_(metrics),
        book_(book),
        events_(events),
        method_(method),
        stream_(stream),
        info_(info),
        started_(absl::Now()) {
    metrics_.GrpcStarted(method_);
  }
  ~RpcInterceptor() override {
    metrics_.GrpcHandled(method_, rpc_ == nullptr ? code_ : rpc_->code());
    metrics_.GrpcTook(method_, absl::ToDoubleSeconds(absl::Now() - started_));
    if (rpc_ != nullptr) book_.Remove(*rpc_);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    (void)Guarded(events_, Thrower::kRpc, [&] { Look(*methods); });
    methods->Proceed();
  }

 private:
  void Look(grpc::experimental::InterceptorBatchMethods& methods) {
    if (methods.QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      auto rpc =
          std::make_shared<OtherRpc>(info_.method(), method_, stream_, *info_.server_context());
      (void)book_.Add(rpc);  // late ones too: a draining node still says what it is
      rpc_ = std::move(rpc);
    }
    if (methods.QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = static_cast<absl::StatusCode>(methods.GetSendStatus().error_code());
      if (rpc_ == nullptr) return;
      if (const auto ended = rpc_->Answer(code_)) methods.ModifySendStatus(ToGrpc(*ended));
    }
  }

  Metrics& metrics_;
  CallBook& book_;
  Observer& events_;
  const int method_;
  const bool stream_;
  grpc::experimental::ServerRpcInfo& info_;
  const absl::Time started_;
  std::shared_ptr<OtherRpc> rpc_;
  absl::StatusCode code_ = absl::StatusCode::kCancelled;  // until a status is sent
};

class RpcInterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  RpcInterceptorFactory(Metrics& metrics, CallBook& book, Observer& events)
      : metrics_(metrics), book_(book), events_(events) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const std::string_view method = info->method();
    constexpr std::string_view kOwnRecords = "/fulcrum.v1.ProjectionService/";
    if (method.starts_with(kOwnRecords)) return nullptr;
    const int index = metrics_.GrpcMethod(method);
    if (index < 0) return nullptr;
    grpc::experimental::Interceptor* made = nullptr;
    (void)Guarded(events_, Thrower::kRpc, [&] {
      made =
          new RpcInterceptor(metrics_, book_, events_, index, metrics_.GrpcStreams(index), *info);
    });
    return made;
  }

 private:
  Metrics& metrics_;
  CallBook& book_;
  Observer& events_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
MakeRpcInterceptors(Metrics& metrics, CallBook& book, Observer& events) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<RpcInterceptorFactory>(metrics, book, events));
  return factories;
}

}  // namespace fulcrum::service

// Project without waiting: the same attempts, waits and rules as the blocking call, driven by
// gRPC's callbacks and an alarm instead of a thread.
// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/alarm.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/client_core.h"
#include "client/cpp/status.h"
#include "fulcrum/v1/projection_service.grpc.pb.h"

namespace fulcrum::client {

// Each callback holds a reference; between an attempt's end and the alarm, the alarm's does.
class Client::AsyncProject final : public PendingCall,
                                   public std::enable_shared_from_this<AsyncProject> {
 public:
  AsyncProject(std::shared_ptr<Core> core, std::shared_ptr<const v1::ProjectRequest> request,
               CallOptions options, ProjectDone done)
      : core_(std::move(core)),
        request_(std::move(request)),
        options_(std::move(options)),
        deadline_(core_->DeadlineOf(options_)),
        done_(std::move(done)) {}

  void Begin() ABSL_LOCKS_EXCLUDED(mu_) {
    Attempt* attempt;
    {
      absl::MutexLock lock(&mu_);
      attempt_ = std::make_unique<Attempt>(core_->Pick());
      attempt = attempt_.get();
      core_->Prepare(options_, deadline_, &attempt->context);
      if (cancelled_) attempt->context.TryCancel();
    }
    attempt->stub->async()->Project(
        &attempt->context, request_.get(), &attempt->response,
        [self = shared_from_this(), attempt](const grpc::Status& status) {
          self->End(FromGrpc(status, attempt->context));
        });
  }

  void Cancel() override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    if (attempt_) attempt_->context.TryCancel();
    if (alarm_) alarm_->Cancel();
  }

 private:
  struct Attempt {
    explicit Attempt(Connection* connection)
        : use(connection), stub(v1::ProjectionService::NewStub(use.channel())) {}
    ConnectionUse use;
    const std::unique_ptr<v1::ProjectionService::Stub> stub;
    grpc::ClientContext context;
    v1::ProjectResponse response;
  };

  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    const bool may_retry = options_.retry && !cancelled();
    std::optional<absl::Duration> wait =
        core_->AfterAttempt(status, attempt_->context, may_retry, deadline_, &info_);
    absl::StatusOr<v1::ProjectResponse> result;
    if (status.ok()) {
      result = std::move(attempt_->response);
    } else {
      result = std::move(status);
    }
    {
      absl::MutexLock lock(&mu_);
      attempt_.reset();
      if (wait && cancelled_) wait.reset();
      if (wait) {
        alarm_ = std::make_unique<grpc::Alarm>();
        alarm_->Set(absl::ToChronoTime(absl::Now() + *wait),
                    [self = shared_from_this()](bool) { self->Again(); });
      }
    }
    if (!wait) std::move(done_)(std::move(result), info_);
  }

  bool cancelled() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return cancelled_;
  }

  void Again() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      alarm_.reset();
    }
    if (cancelled()) {
      std::move(done_)(absl::CancelledError("cancelled by the caller while waiting to retry"),
                       info_);
    } else {
      Begin();
    }
  }

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<const v1::ProjectRequest> request_;
  const CallOptions options_;
  const absl::Time deadline_;
  ProjectDone done_;
  CallInfo info_;

  mutable absl::Mutex mu_;
  std::unique_ptr<Attempt> attempt_;  // replaced under mu_; its callback alone reads the reply
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

std::shared_ptr<PendingCall> Client::ProjectAsync(std::shared_ptr<const v1::ProjectRequest> request,
                                                  const CallOptions& options, ProjectDone done) {
  auto call = std::make_shared<AsyncProject>(core_, std::move(request), options, std::move(done));
  call->Begin();
  return call;
}

}  // namespace fulcrum::client

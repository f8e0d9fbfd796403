// LeverService's methods about canaries.
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/canary_messages.h"
#include "service/grpc_status.h"
#include "service/lever_requests.h"
#include "service/lever_service.h"

namespace fulcrum::service {
namespace {

grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context,
                                const absl::StatusOr<CanaryReport>& report, const std::string& name,
                                v1::Canary* response) {
  if (report.ok()) {
    *response = MessageOf(*report);
    return Finish(context, absl::OkStatus());
  }
  if (absl::IsNotFound(report.status())) {
    return Finish(context, WithResource(report.status(), "canary", name));
  }
  if (absl::IsFailedPrecondition(report.status())) {
    return Finish(context, WithPrecondition(report.status(), "CANARY_STATE", name));
  }
  return Finish(context, report.status());
}

}  // namespace

absl::Status LeverServiceImpl::Explain(absl::Status status,
                                       const std::vector<LeverChange>& changes) const {
  const LeverView view = store_.View();
  if (absl::IsAborted(status)) {
    return WithInfo(std::move(status), "LEVER_EPOCH_STALE",
                    {{"live_epoch", absl::StrCat(view.live->epoch)}});
  }
  if (!absl::IsFailedPrecondition(status)) return status;
  for (const LeverChange& change : changes) {
    if (view.live->latched[static_cast<size_t>(FindLever(change.lever)->lever)]) {
      return WithPrecondition(std::move(status), "LEVER_LATCHED", change.lever);
    }
  }
  if (view.canary == nullptr) return WithPrecondition(std::move(status), "CANARY_UNEVEN", "share");
  return WithPrecondition(std::move(status), "CANARY_RUNNING", CanaryName(view.canary->id));
}

grpc::ServerUnaryReactor* LeverServiceImpl::StartCanary(grpc::CallbackServerContext* context,
                                                        const v1::StartCanaryRequest* request,
                                                        v1::Canary* response) {
  const Peer peer = authorizer_.PeerOf(*context);
  if (absl::Status s = authorizer_.CheckAdmin(peer); !s.ok()) return Finish(context, s);
  if (absl::Status s = CheckAssignments(request->assignments(), request->reason()); !s.ok()) {
    return Finish(context, s);
  }
  const absl::StatusOr<CanarySpec> spec = SpecOf(*request, peer.Actor());
  if (!spec.ok()) return Finish(context, spec.status());
  const absl::StatusOr<CanaryReport> started =
      canaries_.Start(*spec, request->based_on_epoch(), request->validate_only());
  if (!started.ok()) return Finish(context, Explain(started.status(), spec->changes));
  *response = MessageOf(*started);
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* LeverServiceImpl::PromoteCanary(grpc::CallbackServerContext* context,
                                                          const v1::PromoteCanaryRequest* request,
                                                          v1::Canary* response) {
  const Peer peer = authorizer_.PeerOf(*context);
  if (absl::Status s = authorizer_.CheckAdmin(peer); !s.ok()) return Finish(context, s);
  if (absl::Status s = CheckReason(request->reason()); !s.ok()) return Finish(context, s);
  const absl::StatusOr<uint64_t> id = ParseCanaryName(request->name());
  if (!id.ok()) return Finish(context, id.status());
  return Reply(context, canaries_.Promote(*id, peer.Actor(), request->reason()), request->name(),
               response);
}

grpc::ServerUnaryReactor* LeverServiceImpl::AbortCanary(grpc::CallbackServerContext* context,
                                                        const v1::AbortCanaryRequest* request,
                                                        v1::Canary* response) {
  const Peer peer = authorizer_.PeerOf(*context);
  if (absl::Status s = authorizer_.CheckAdmin(peer); !s.ok()) return Finish(context, s);
  if (absl::Status s = CheckReason(request->reason()); !s.ok()) return Finish(context, s);
  const absl::StatusOr<uint64_t> id = ParseCanaryName(request->name());
  if (!id.ok()) return Finish(context, id.status());
  return Reply(context, canaries_.Abort(*id, peer.Actor(), request->reason()), request->name(),
               response);
}

grpc::ServerUnaryReactor* LeverServiceImpl::HeartbeatCanary(
    grpc::CallbackServerContext* context, const v1::HeartbeatCanaryRequest* request,
    v1::Canary* response) {
  const Peer peer = authorizer_.PeerOf(*context);
  if (absl::Status s = authorizer_.CheckAdmin(peer); !s.ok()) return Finish(context, s);
  const absl::StatusOr<uint64_t> id = ParseCanaryName(request->name());
  if (!id.ok()) return Finish(context, id.status());
  return Reply(context, canaries_.Heartbeat(*id), request->name(), response);
}

}  // namespace fulcrum::service

// See lever_requests.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/lever_requests.h"

#include <set>
#include <string_view>

#include "absl/strings/str_format.h"
#include "kernels/ladder/levers.h"
#include "service/grpc_status.h"

namespace fulcrum::service {
namespace {

constexpr size_t kMaxReasonBytes = 1024;

std::string_view Message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace

absl::Status CheckReason(const std::string& reason) {
  if (reason.size() <= kMaxReasonBytes) return absl::OkStatus();
  return InvalidField(
      "reason", absl::StrFormat("%d bytes; expected at most %d", reason.size(), kMaxReasonBytes));
}

absl::Status CheckAssignments(
    const google::protobuf::RepeatedPtrField<v1::LeverAssignment>& assignments,
    const std::string& reason) {
  if (assignments.empty()) return InvalidField("assignments", "names no lever");
  if (absl::Status s = CheckReason(reason); !s.ok()) return s;
  LeverSet scratch;
  std::set<std::string> named;
  for (int i = 0; i < assignments.size(); ++i) {
    const v1::LeverAssignment& assignment = assignments[i];
    const bool known = FindLever(assignment.name()) != nullptr;
    if (absl::Status s = scratch.Set(assignment.name(), assignment.value()); !s.ok()) {
      return InvalidField(absl::StrFormat("assignments[%d].%s", i, known ? "value" : "name"),
                          Message(s));
    }
    if (!named.insert(assignment.name()).second) {
      return InvalidField(absl::StrFormat("assignments[%d].name", i),
                          absl::StrFormat("lever %s is named twice", assignment.name()));
    }
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace fulcrum::service

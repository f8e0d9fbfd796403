// The two lists that bound what peers may do.
// SPDX-License-Identifier: Apache-2.0
#include "service/authorization.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace fulcrum::service {
namespace {

bool Lists(const std::vector<std::string>& allowed, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(allowed.begin(), allowed.end(), name) != allowed.end();
  });
}

}  // namespace

absl::Status Authorizer::CheckCaller(const Peer& peer) const {
  if (!tls_.mutual()) return absl::OkStatus();
  if (!peer.verified()) {
    return absl::UnauthenticatedError(
        absl::StrFormat("%s presented no client certificate with a name; this node requires one "
                        "issued by its client CA",
                        peer.address));
  }
  if (tls_.allowed_clients.empty() || Lists(tls_.allowed_clients, peer.names)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrFormat(
      "'%s' is not in tls.allowed_clients of this node", PrintableIdentity(peer.names.front())));
}

absl::Status Authorizer::CheckAdmin(const Peer& peer) const {
  if (absl::Status s = CheckCaller(peer); !s.ok()) return s;
  if (!tls_.mutual() || tls_.admin_clients.empty() || Lists(tls_.admin_clients, peer.names)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrFormat("'%s' is not in tls.admin_clients of this node, which may change levers and "
                      "shards",
                      PrintableIdentity(peer.names.front())));
}

}  // namespace fulcrum::service

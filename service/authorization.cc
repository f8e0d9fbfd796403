// Peers from the connection's authentication context, and the two lists that bound them.
// SPDX-License-Identifier: Apache-2.0
#include "service/authorization.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"

namespace fulcrum::service {
namespace {

bool Lists(const std::vector<std::string>& allowed, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(allowed.begin(), allowed.end(), name) != allowed.end();
  });
}

// "ipv4:10.0.0.1:4242" -> "10.0.0.1", "ipv6:%5B::1%5D:4242" -> "::1", "unix:..." -> "unix": one
// client keeps one identity over its connections.
std::string WithoutPort(const std::string& address) {
  if (address.starts_with("unix")) return "unix";
  const bool v4 = address.starts_with("ipv4:");
  if (!v4 && !address.starts_with("ipv6:")) return address;
  std::string host = address.substr(5);
  host.resize(std::min(host.size(), host.rfind(':')));
  if (v4) return host;
  for (const char* bracket : {"%5B", "%5D", "[", "]"}) {
    if (const size_t at = host.find(bracket); at != std::string::npos) {
      host.erase(at, std::string(bracket).size());
    }
  }
  return host;
}

}  // namespace

Peer PeerOf(const grpc::ServerContextBase& context) {
  Peer peer;
  peer.address = context.peer();
  const auto auth = context.auth_context();
  if (auth != nullptr && auth->IsPeerAuthenticated()) {
    for (const char* property : {GRPC_X509_SAN_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME}) {
      for (const grpc::string_ref& value : auth->FindPropertyValues(property)) {
        std::string name(value.data(), value.size());
        if (!name.empty()) peer.names.push_back(std::move(name));
      }
    }
  }
  peer.identity = peer.verified() ? peer.names.front() : WithoutPort(peer.address);
  return peer;
}

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
  return absl::PermissionDeniedError(
      absl::StrFormat("'%s' is not in tls.allowed_clients of this node", peer.identity));
}

absl::Status Authorizer::CheckAdmin(const Peer& peer) const {
  if (absl::Status s = CheckCaller(peer); !s.ok()) return s;
  if (!tls_.mutual() || tls_.admin_clients.empty() || Lists(tls_.admin_clients, peer.names)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrFormat("'%s' is not in tls.admin_clients of this node, which may change levers and "
                      "shards",
                      peer.identity));
}

}  // namespace fulcrum::service

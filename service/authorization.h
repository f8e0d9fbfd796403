// Who a caller is and what it may do. Identity comes from the connection alone (a verified client
// certificate, or the address), never from metadata that a caller can write.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "service/config.h"

namespace fulcrum::service {

struct Peer {
  std::string identity;  // first SAN, else CN, of a verified certificate; otherwise the address
                         // without port: the fairness key, and the actor of lever events
  std::vector<std::string> names;  // all SANs and the CN; empty without a verified certificate
  std::string address;             // "ipv4:127.0.0.1:4242", "unix:"

  bool verified() const { return !names.empty(); }
};
Peer PeerOf(const grpc::ServerContextBase& context);

// Immutable after construction, thread-safe.
class Authorizer {
 public:
  explicit Authorizer(const TlsFiles& tls) : tls_(tls) {}

  // UNAUTHENTICATED without a certificate where one is required, PERMISSION_DENIED when it is not
  // on the list. Without client_ca everyone who can connect may call.
  absl::Status CheckCaller(const Peer& peer) const;
  // CheckCaller, and on the list of admins where there is one.
  absl::Status CheckAdmin(const Peer& peer) const;

 private:
  const TlsFiles tls_;
};

}  // namespace fulcrum::service

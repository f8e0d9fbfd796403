// What a caller may do. Rights go by the names of its verified certificate alone, never by what a
// header says, a trusted peer's included (identity.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "service/config.h"
#include "service/identity.h"

namespace fulcrum::service {

// Immutable after construction, thread-safe.
class Authorizer {
 public:
  // `told` as Identifier has it.
  explicit Authorizer(const TlsFiles& tls, const IdentityConfig& identity = {},
                      Identifier::Told told = nullptr)
      : tls_(tls), identifier_(identity, std::move(told)) {}

  Peer PeerOf(grpc::ServerContextBase& context) const { return identifier_.PeerOf(context); }

  // UNAUTHENTICATED without a certificate where one is required, PERMISSION_DENIED when it is not
  // on the list. Without client_ca everyone who can connect may call.
  absl::Status CheckCaller(const Peer& peer) const;
  // CheckCaller, and on the list of admins where there is one.
  absl::Status CheckAdmin(const Peer& peer) const;

 private:
  const TlsFiles tls_;
  const Identifier identifier_;
};

}  // namespace fulcrum::service

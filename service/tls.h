// The server's credentials: none, TLS or mutual TLS from PEM files that may change while the node
// runs. Who the peer of a connection is, and what it may do, is authorization.h's.
//
// gRPC's own file watcher hands on whatever stands in the files, and a pair whose halves do not
// match then refuses every new handshake. So it is pointed at a copy in anonymous memory instead,
// which changes only to a pair that was read whole and checked: a bad new pair keeps the old one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/security/server_credentials.h"
#include "service/config.h"

namespace fulcrum::service {

// Hears of a change of the files: OK with the new certificate's expiry, or why what is there now
// was refused (the old pair stays). Once a change, on the reloading thread.
using TlsReloadListener = std::function<void(const absl::StatusOr<absl::Time>& expiry)>;

// Outlives the server that uses its credentials.
class ServerTls {
 public:
  // Insecure credentials when `files` names no certificate. A thread looks at the files again every
  // files.reload; new handshakes see a good new pair at most a second later, connections that are
  // up keep the one they began with. Errors are tls_material.h's.
  static absl::StatusOr<std::unique_ptr<ServerTls>> Make(const TlsFiles& files,
                                                         TlsReloadListener on_reload = nullptr);
  ~ServerTls();

  std::shared_ptr<grpc::ServerCredentials> credentials() const;
  // When the certificate being served ends, for a gauge; InfiniteFuture without TLS.
  absl::Time expiry() const;
  // Looks at the files now. True when a new pair was taken.
  bool Reload();

 private:
  class Impl;
  explicit ServerTls(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;  // null without TLS
};

}  // namespace fulcrum::service

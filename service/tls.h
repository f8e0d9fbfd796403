// Server credentials from PEM files: none, TLS, or mutual TLS, re-read while the node runs. Who the
// peer of a connection is, and what it may do, is authorization.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/security/server_credentials.h"
#include "service/config.h"

namespace fulcrum::service {

// Contents of the files, checked: the key belongs to the first certificate of the chain, the CA file
// holds at least one certificate. Never half of one pair and half of another.
struct TlsMaterial {
  std::string certificate, key, client_ca;
  absl::Time expiry;  // of the first certificate of the chain

  friend bool operator==(const TlsMaterial&, const TlsMaterial&) = default;
};
// INVALID_ARGUMENT or NOT_FOUND names the file and what is wrong with it; never prints a key.
absl::StatusOr<TlsMaterial> ReadTlsMaterial(const TlsFiles& files);

// Called when the files were looked at again and differ: OK with the new expiry, or why the new pair
// was refused (the old one stays). On a connection's thread, at most once per `reload`.
using TlsReloadListener = std::function<void(const absl::StatusOr<absl::Time>& expiry)>;

// Insecure credentials when the configuration has no TLS. Otherwise new handshakes see a changed
// pair after at most `files.reload`; connections that are up keep the one they began with.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files, TlsReloadListener on_reload = nullptr);

// When the certificate now in the file ends; for a gauge.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& certificate_path);

}  // namespace fulcrum::service

// Certificates and keys as PEM text, read from files and checked before anyone serves with them.
// Serving and re-reading is tls.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/config.h"

namespace fulcrum::service {

// A checked set: the key belongs to the first certificate of the chain, the client CA (where one is
// configured) holds at least one certificate, and all of it parses.
struct TlsMaterial {
  std::string certificate, key, client_ca;
  absl::Time expiry;  // of the first certificate of the chain

  friend bool operator==(const TlsMaterial&, const TlsMaterial&) = default;
};

// Errors name each file and what is wrong with it, one a line; they never print what it holds. A
// pair that is replaced file by file is refused in between, since its halves do not match.
absl::StatusOr<TlsMaterial> ReadTlsMaterial(const TlsFiles& files);

}  // namespace fulcrum::service

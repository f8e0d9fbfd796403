// A peer that may say which client a call is from (identity.trusted_peers of the configuration): a
// proxy, named by its addresses, by a name of its certificate, or as whatever is on a Unix socket.
// What it says, and how it counts, is identity.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fulcrum::service {

// IPv4 as IPv6 (::ffff:a.b.c.d), so that a prefix is one thing.
struct AddressRange {
  in6_addr address = {};
  int bits = 128;  // of the prefix

  bool Holds(const in6_addr& other) const;
};
struct UnixPeer {};
struct CertificateName {
  std::string name;
};
using TrustedPeer = std::variant<AddressRange, UnixPeer, CertificateName>;

// "10.0.0.0/8", "10.1.2.3", "fd00::/8", "unix:", and anything that does not look like one of these
// is a certificate's name. INVALID_ARGUMENT says what is wrong with an address: bits behind its
// prefix, a prefix that is every address.
absl::StatusOr<TrustedPeer> ParseTrustedPeer(std::string_view text);

// "10.0.0.1" or "fe80::1%eth0"; none for anything else.
std::optional<in6_addr> ParseAddress(std::string_view text);

// INVALID_ARGUMENT for what cannot name a client: no header's name, one that callers or libraries
// set for other ends, one whose value is a secret.
absl::Status CheckIdentityHeader(std::string_view header);

}  // namespace fulcrum::service

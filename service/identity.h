// Who a call is from: one answer for fairness between clients, a canary's share, counts, the log
// and the actor of lever events. The first of these that there is:
//
//   1. The first SAN, else the CN, of a verified client certificate, unless it is that of a trusted
//      peer which sets the header.
//   2. "header:VALUE", where identity.header is configured and a trusted peer set it. A peer with a
//      certificate is trusted when one of its names is listed; a peer without one when its address
//      is, or "unix:" where it is on a Unix socket. So a client with a certificate cannot take
//      another's name by coming from a proxy's network.
//   3. The address without its port; "unix" on a Unix socket.
//
// The authority of a call (":authority", what its caller dialled) is text that a caller chooses as
// it chooses any header: it counts where it is configured as the header, from a trusted peer, and
// nowhere else. A header that comes twice counts as none, since one of the two may be the client's
// own that the proxy did not take out. Identities give no rights: those go by certificate alone
// (authorization.h).
//
// Connections of one identity are told apart beside it, never as part of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "grpcpp/server_context.h"
#include "service/config.h"
#include "service/trusted_peer.h"

namespace fulcrum::service {

// What became of an identity header.
enum class HeaderUse : uint8_t {
  kUsed,
  kUntrusted,  // its peer may not set it
  kInvalid,    // empty, or there twice
};
inline constexpr std::array kAllHeaderUses = {HeaderUse::kUsed, HeaderUse::kUntrusted,
                                              HeaderUse::kInvalid};
std::string_view Name(HeaderUse use);

struct Peer {
  std::string identity = {};  // printable ASCII, at most kMostIdentityBytes
  // Whom `identity` is known from: the same, unless a trusted peer named another client.
  std::string spoken_by = {};
  std::vector<std::string> names = {};  // all SANs and the CN; empty without a verified certificate
  std::string address = {};             // "ipv4:127.0.0.1:4242", "unix:"
  uint64_t connection = 0;              // another one for each connection that is open

  bool verified() const { return !names.empty(); }
  // For records: "header:alice via proxy.example".
  std::string Actor() const;
};
inline constexpr size_t kMostIdentityBytes = 128;

// A name as an identity: bytes that are not printable ASCII escaped, and a long one cut, with
// digits of its SHA-256 behind so that no two become one.
std::string PrintableIdentity(std::string_view name);
// "ipv4:10.0.0.1:4242" -> "10.0.0.1", "ipv6:%5B::1%5D:4242" -> "::1", "unix:..." -> "unix".
std::string WithoutPort(std::string_view address);

// Immutable after construction, thread-safe.
class Identifier {
 public:
  using Told = std::function<void(HeaderUse, const Peer&)>;

  // A configuration that CheckConfig accepts. `told` (may be empty) is called for each RPC that
  // brings the header, on its thread; an authority that does not count is no header.
  explicit Identifier(const IdentityConfig& config, Told told = nullptr);

  Peer PeerOf(grpc::ServerContextBase& context) const;
  // The rule itself. `peer` has names and address; `values` is what the header says, once for each
  // time it is there.
  void Identify(const std::vector<std::string_view>& values, Peer& peer) const;

 private:
  bool Trusts(const Peer& peer) const;

  const std::string header_;  // empty: none
  std::vector<TrustedPeer> trusted_;
  const Told told_;
};

}  // namespace fulcrum::service

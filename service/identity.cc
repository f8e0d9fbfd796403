// See identity.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/identity.h"

#include <openssl/evp.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "grpc/grpc_security.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"
#include "scheduler/canary_split.h"

namespace fulcrum::service {
namespace {

constexpr std::string_view kHeaderPrefix = "header:", kCertificatePrefix = "certificate:";
constexpr std::string_view kAuthority = ":authority";
constexpr size_t kDigestBytes = 8;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string Digest(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE] = {};
  unsigned int size = 0;
  (void)EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), kDigestBytes));
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = absl::ascii_tolower(static_cast<unsigned char>(c));
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// gRPC writes addresses as URIs.
std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low < 0) {
      out.push_back(text[i]);
      continue;
    }
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

// Connections of one address and all of a Unix socket look alike but for the object that gRPC makes
// for each while it is open.
uint64_t ConnectionOf(grpc::ServerContextBase& context, std::string_view address) {
  grpc_auth_context* const own =
      context.c_call() == nullptr ? nullptr : grpc_call_auth_context(context.c_call());
  if (own == nullptr) return KeyHash(address);
  const uint64_t number = reinterpret_cast<uintptr_t>(own);
  grpc_auth_context_release(own);
  return number;
}

std::vector<std::string> CertificateNames(const grpc::ServerContextBase& context) {
  std::vector<std::string> names;
  const auto auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) return names;
  for (const char* property : {GRPC_X509_SAN_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME}) {
    for (const grpc::string_ref& value : auth->FindPropertyValues(property)) {
      std::string name(value.data(), value.size());
      if (!name.empty()) names.push_back(std::move(name));
    }
  }
  return names;
}

// What the peer is by itself.
std::string OwnIdentity(const Peer& peer) {
  if (!peer.verified()) return PrintableIdentity(WithoutPort(peer.address));
  const std::string& name = peer.names.front();
  const bool as_header = name.starts_with(kHeaderPrefix) || name.starts_with(kCertificatePrefix);
  return PrintableIdentity(as_header ? absl::StrCat(View(kCertificatePrefix), name) : name);
}

}  // namespace

std::string_view Name(HeaderUse use) {
  constexpr std::string_view kNames[] = {"used", "untrusted", "invalid"};
  static_assert(std::size(kNames) == kAllHeaderUses.size());
  return kNames[static_cast<size_t>(use)];
}

std::string Peer::Actor() const {
  return identity == spoken_by ? identity : absl::StrCat(identity, " via ", spoken_by);
}

std::string PrintableIdentity(std::string_view name) {
  const bool plain = std::all_of(name.begin(), name.end(),
                                 [](char c) { return c >= 0x20 && c < 0x7f && c != '\\'; });
  std::string text = plain ? std::string(name) : absl::CHexEscape(View(name));
  if (text.size() <= kMostIdentityBytes) return text;
  const std::string tail = absl::StrCat("...", Digest(name));
  text.resize(kMostIdentityBytes - tail.size());
  return text + tail;
}

std::string WithoutPort(std::string_view address) {
  if (address.starts_with("unix")) return "unix";
  const bool v4 = address.starts_with("ipv4:");
  if (!v4 && !address.starts_with("ipv6:")) return std::string(address);
  std::string host = PercentDecoded(address.substr(5));
  host.resize(std::min(host.size(), host.rfind(':')));
  if (v4 || !host.starts_with('[') || !host.ends_with(']')) return host;
  return host.substr(1, host.size() - 2);
}

Identifier::Identifier(const IdentityConfig& config, Told told)
    : header_(config.header), told_(std::move(told)) {
  for (const std::string& text : config.trusted_peers) {
    if (absl::StatusOr<TrustedPeer> peer = ParseTrustedPeer(text); peer.ok()) {
      trusted_.push_back(*std::move(peer));
    }
  }
}

bool Identifier::Trusts(const Peer& peer) const {
  const std::string host = WithoutPort(peer.address);
  const std::optional<in6_addr> address = ParseAddress(host);
  return std::any_of(trusted_.begin(), trusted_.end(), [&](const TrustedPeer& trusted) {
    if (const auto* name = std::get_if<CertificateName>(&trusted)) {
      return std::find(peer.names.begin(), peer.names.end(), name->name) != peer.names.end();
    }
    if (peer.verified()) return false;
    if (std::holds_alternative<UnixPeer>(trusted)) return host == "unix";
    return address.has_value() && std::get<AddressRange>(trusted).Holds(*address);
  });
}

void Identifier::Identify(const std::vector<std::string_view>& values, Peer& peer) const {
  peer.identity = peer.spoken_by = OwnIdentity(peer);
  if (header_.empty() || values.empty()) return;
  HeaderUse use = HeaderUse::kUsed;
  const std::string value(absl::StripAsciiWhitespace(View(values.front())));
  if (!Trusts(peer)) {
    use = HeaderUse::kUntrusted;
  } else if (values.size() > 1 || value.empty()) {
    use = HeaderUse::kInvalid;
  } else {
    peer.identity = PrintableIdentity(absl::StrCat(View(kHeaderPrefix), value));
  }
  // Every call has an authority; only a trusted peer's is meant to be one.
  const bool own_authority = use == HeaderUse::kUntrusted && header_ == kAuthority;
  if (told_ && !own_authority) told_(use, peer);
}

Peer Identifier::PeerOf(grpc::ServerContextBase& context) const {
  Peer peer;
  peer.address = context.peer();
  peer.names = CertificateNames(context);
  peer.connection = ConnectionOf(context, peer.address);
  std::vector<std::string_view> values;
  if (header_ == kAuthority) {
    const grpc::string_ref authority = context.ExperimentalGetAuthority();
    if (!authority.empty()) values.emplace_back(authority.data(), authority.size());
  } else if (!header_.empty()) {
    const auto [begin, end] = context.client_metadata().equal_range(header_);
    for (auto it = begin; it != end; ++it)
      values.emplace_back(it->second.data(), it->second.size());
  }
  Identify(values, peer);
  return peer;
}

}  // namespace fulcrum::service

// See trusted_peer.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/trusted_peer.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "service/call_context.h"

namespace fulcrum::service {
namespace {

constexpr size_t kMostHeaderBytes = 64;
constexpr int kMappedBits = 96;  // of ::ffff:0:0/96

struct Unfit {
  std::string_view name, why;
};
// Names that would tell nobody apart, or more than the log may hold.
constexpr Unfit kUnfit[] = {
    {"authorization", "its value is a secret, and identities are written to the log"},
    {"proxy-authorization", "its value is a secret, and identities are written to the log"},
    {"cookie", "its value is a secret, and identities are written to the log"},
    {"x-forwarded-for", "callers may begin its list with any name"},
    {"forwarded", "callers may begin its list with any name"},
    {"via", "callers may begin its list with any name"},
    {kCallIdKey, "it differs from call to call"},
    {"traceparent", "it differs from call to call"},
    {"tracestate", "it differs from call to call"},
    {"user-agent", "it is the same for all clients of a kind"},
    {"content-type", "it is the same for all clients"},
    {"te", "it is the same for all clients"},
    {"host", "gRPC knows it as :authority"},
};

bool IsHeaderChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

// What can only be meant as an address: digits and dots, or a network. "spiffe://a/b" is a name.
bool LooksLikeAddress(std::string_view text) {
  if (text.find_first_not_of("0123456789.") == std::string_view::npos) return true;
  return text.find('/') != std::string_view::npos && text.find("//") == std::string_view::npos;
}

absl::Status Bad(std::string_view text, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("'%s': %s", text, what));
}

bool Bit(const in6_addr& address, int bit) {
  return (address.s6_addr[bit / 8] >> (7 - bit % 8) & 1) != 0;
}

}  // namespace

bool AddressRange::Holds(const in6_addr& other) const {
  const int whole = bits / 8;
  if (std::memcmp(address.s6_addr, other.s6_addr, static_cast<size_t>(whole)) != 0) return false;
  for (int bit = whole * 8; bit < bits; ++bit) {
    if (Bit(address, bit) != Bit(other, bit)) return false;
  }
  return true;
}

std::optional<in6_addr> ParseAddress(std::string_view text) {
  const std::string host(text.substr(0, text.find('%')));  // a zone says how to get there
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return v6;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) != 1) return std::nullopt;
  v6.s6_addr[10] = v6.s6_addr[11] = 0xff;
  std::memcpy(v6.s6_addr + 12, &v4, sizeof(v4));
  return v6;
}

absl::StatusOr<TrustedPeer> ParseTrustedPeer(std::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError("is empty");
  if (text == "unix:" || text == "unix") return UnixPeer{};
  if (text.starts_with("unix:")) {
    return Bad(text,
               "callers of a Unix socket have no path; expected 'unix:', which is all of them");
  }
  const size_t slash = text.find('/');
  const std::string_view host = text.substr(0, slash);
  const std::optional<in6_addr> address = ParseAddress(host);
  if (!address.has_value()) {
    if (!LooksLikeAddress(text)) return CertificateName{std::string(text)};
    return Bad(text, "expected an address such as 10.1.2.3 or a network such as 10.0.0.0/8");
  }
  AddressRange range{.address = *address};
  if (slash == std::string_view::npos) return range;
  const bool v4 = host.find(':') == std::string_view::npos;
  int bits = 0;
  const int most = v4 ? 32 : 128;
  if (!absl::SimpleAtoi(std::string(text.substr(slash + 1)), &bits) || bits < 0 || bits > most) {
    return Bad(text, absl::StrFormat("expected a prefix of 1 to %d bits", most));
  }
  if (bits == 0) {
    return Bad(text, "that is every address: any caller could take any client's name");
  }
  range.bits = v4 ? kMappedBits + bits : bits;
  for (int bit = range.bits; bit < 128; ++bit) {
    if (!Bit(range.address, bit)) continue;
    return Bad(text,
               absl::StrFormat("it has bits behind its prefix of %d; name the network, or the "
                               "address without a prefix",
                               bits));
  }
  return range;
}

absl::Status CheckIdentityHeader(std::string_view header) {
  if (header == ":authority") return absl::OkStatus();
  if (header.empty() || header.size() > kMostHeaderBytes ||
      !std::all_of(header.begin(), header.end(), IsHeaderChar)) {
    return Bad(header, absl::StrFormat("expected a header's name of 1 to %d lower-case letters, "
                                       "digits, '-', '_' or '.', or \":authority\"",
                                       kMostHeaderBytes));
  }
  if (header.ends_with("-bin")) return Bad(header, "a binary header; expected one of text");
  if (header.starts_with("grpc-")) return Bad(header, "gRPC keeps such names for itself");
  for (const Unfit& unfit : kUnfit) {
    if (header != unfit.name) continue;
    return Bad(header, absl::StrFormat("%s; let the proxy set a header of its own", unfit.why));
  }
  return absl::OkStatus();
}

}  // namespace fulcrum::service

// How a Unix socket is named to gRPC, by the node and by its clients. gRPC reads a target as a URI:
// it decodes "%41" and cuts at '?' and '#'. A path is none of that: it is taken as it stands.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fulcrum {

inline constexpr std::string_view kUnixScheme = "unix:";

// The target of gRPC for "unix:PATH" with a literal PATH. Any other target comes back as it is.
inline std::string GrpcTarget(std::string_view target) {
  if (!target.starts_with(kUnixScheme)) return std::string(target);
  constexpr std::string_view kPlain =
      "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out(kUnixScheme);
  for (const char c : target.substr(kUnixScheme.size())) {
    if (kPlain.find(c) != std::string_view::npos) {
      out.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out.push_back('%');
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

}  // namespace fulcrum

// The status of a request that was not parsed.
// SPDX-License-Identifier: Apache-2.0
#include "service/bounded_methods.h"

#include "absl/strings/str_format.h"

namespace fulcrum::service {

absl::Status RequestRefused(size_t bytes, std::string_view type) {
  if (bytes <= kMaxControlBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("the request is not a %s", type));
  }
  return WithInfo(
      absl::ResourceExhaustedError(absl::StrFormat(
          "the request has %d bytes, this method takes at most %d", bytes, kMaxControlBytes)),
      "REQUEST_TOO_LARGE",
      {{"needed_bytes", absl::StrCat(bytes)}, {"limit_bytes", absl::StrCat(kMaxControlBytes)}});
}

}  // namespace fulcrum::service

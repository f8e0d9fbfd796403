// See name_part.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/name_part.h"

#include "absl/strings/str_format.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }
bool IsPunctuation(char c) { return c == '.' || c == '_' || c == '-'; }

absl::Status CheckPart(std::string_view what, std::string_view text, size_t max, bool upper) {
  bool legal = !text.empty() && text.size() <= max && text != "." && text != "..";
  for (char c : text)
    legal &= IsDigit(c) || IsLower(c) || IsPunctuation(c) || (upper && IsUpper(c));
  if (legal) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s name %s (%d bytes); expected 1 to %d characters of [%sa-z0-9._-]", what,
                      Quoted(text), text.size(), max, upper ? "A-Z" : ""));
}

}  // namespace

absl::Status CheckModelName(std::string_view model) {
  return CheckPart("model", model, kMaxModelName, false);
}

absl::Status CheckShardLeaf(std::string_view shard) {
  return CheckPart("shard", shard, kMaxShardLeaf, true);
}

}  // namespace fulcrum

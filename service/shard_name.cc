// The grammar of shard names, checked part by part so that an error names the part.
// SPDX-License-Identifier: Apache-2.0
#include "service/shard_name.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum::service {
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

absl::Status CheckShardName(std::string_view name) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(name.data(), name.size()), '/');
  if (parts.size() != 4 || parts[0] != "models" || parts[2] != "shards") {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s; expected models/{model}/shards/{shard}", Quoted(name)));
  }
  if (absl::Status s = CheckModelName(parts[1]); !s.ok()) return s;
  return CheckShardLeaf(parts[3]);
}

absl::Status CheckShardParent(std::string_view name) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(name.data(), name.size()), '/');
  if (parts.size() != 2 || parts[0] != "models") {
    return absl::InvalidArgumentError(absl::StrFormat("%s; expected models/{model}", Quoted(name)));
  }
  return CheckModelName(parts[1]);
}

std::string ShardName(std::string_view model, std::string_view shard) {
  return absl::StrFormat("models/%s/shards/%s", model, shard);
}

}  // namespace fulcrum::service

// Shard names, checked part by part so that an error names the part.
// SPDX-License-Identifier: Apache-2.0
#include "service/shard_name.h"

#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/weights/name_part.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum::service {

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

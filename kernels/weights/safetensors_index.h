// The index of a checkpoint that is spread over several safetensors files: its grammar, and what it
// says against the files that are there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/weights/manifest.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {

inline constexpr std::string_view kSafetensorsIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kIndexSuffix = ".index.json";

struct SafetensorsIndex {
  struct Entry {
    std::string tensor;
    std::string file;  // relative to the index's folder, never leading out of it
  };
  std::string path;
  std::vector<Entry> entries;          // sorted by tensor
  std::optional<uint64_t> total_size;  // metadata.total_size
  Manifest manifest;                   // what its other members say

  std::vector<std::string> Files() const;  // as in the entries, sorted, each once
};

// Keys are unique at every level. INVALID_ARGUMENT.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json,
                                                       const std::string& path);
absl::StatusOr<SafetensorsIndex> ReadSafetensorsIndex(const std::string& path,
                                                      const ReadRule& may_read = {});

// Holds the tensors of files that were read against the index; `paths` leads from a file as the
// index spells it to the path it was read by. A tensor that the index does not name, or places in a
// file that was not read, becomes undecided; a copy of one that was read where the index places it
// is left out. INVALID_ARGUMENT where a file that was read lacks tensors that the index places in
// it.
absl::Status ApplyIndex(const SafetensorsIndex& index,
                        const std::map<std::string, std::string>& paths,
                        std::vector<TensorInfo>& tensors);

// metadata.total_size against the tensors of all files of the index: INVALID_ARGUMENT where it fits
// no way of counting them.
absl::Status CheckTotalSize(const SafetensorsIndex& index, const std::vector<TensorInfo>& tensors);

}  // namespace fulcrum

// The JSON of the safetensors family: the tensor header and the index of a sharded checkpoint. Both
// are read as a stream of events with a fixed grammar, so duplicate keys are seen and depth is
// bounded. What the values mean for a file is checked in safetensors.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fulcrum {

// One tensor as the header claims it; nothing is checked but the grammar.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::array<uint64_t, 2> offsets{};
};

// In the header's order. INVALID_ARGUMENT for anything that is not the format's grammar.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json);

// model.safetensors.index.json: which file of the directory holds which tensor.
struct SafetensorsIndex {
  struct Entry {
    std::string tensor;
    std::string file;  // relative to the index's directory, never leading out of it
  };
  std::vector<Entry> entries;  // sorted by tensor
};
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json,
                                                       const std::string& path);

}  // namespace fulcrum

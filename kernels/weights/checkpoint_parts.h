// A checkpoint in parts: whether the files at hand are all of one set, each once. Parts say so by
// their names (X-00002-of-00003.safetensors) or, GGUF, by their split keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace fulcrum {

struct PartName {
  std::string stem;  // what comes before the numbers
  uint64_t number = 0, total = 0;
};

// What a file's name says; nothing when it does not end on two numbers around "of".
std::optional<PartName> PartOf(std::string_view file_name);

// OK where the numbered files among `paths` are whole sets, numbered from 1 or from 0. A link of
// another name to a numbered file counts as that; other files do not matter. INVALID_ARGUMENT names
// what is missing, doubled, or of another set.
absl::Status CheckPartNames(const std::vector<std::string>& paths);

// What a GGUF file says of itself (split.no, split.count, split.tensors.count).
struct GgufPart {
  std::string path;
  bool speaks = false;  // it has a split.count, which is 0 for parts that were merged
  uint64_t number = 0;  // from 0
  uint64_t count = 0;   // 0 and 1: a whole model
  std::optional<uint64_t> model_tensors;  // of all parts
  uint64_t tensors = 0;                   // of this one
};

// OK where the files are one model: all its parts, each once, with as many tensors as they say.
// Files without split keys are judged by their names.
absl::Status CheckGgufParts(const std::vector<GgufPart>& parts);

}  // namespace fulcrum

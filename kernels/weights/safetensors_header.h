// The grammar of a safetensors header, as strict as the format's reference reader. What the values
// mean for a file is checked in safetensors.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
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

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        // in the header's order
  std::map<std::string, std::string> metadata;  // __metadata__
};

// INVALID_ARGUMENT for anything that is not the format's grammar. Two rules are stricter than the
// reference reader's, each because readers would disagree: a tensor name occurs once, and an entry
// is an object. Fields of an entry that are unknown are passed over, as there.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json);

}  // namespace fulcrum

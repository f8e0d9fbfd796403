// Numbers of parts and layers: read from names, and for messages which of a run are missing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace fulcrum {

// A text of digits alone, below 2^64.
std::optional<uint64_t> WholeNumber(std::string_view text);

// The numbers of [begin, end) that are not in `found`, as "2, 5 to 9 and 12"; long lists are cut.
// Empty when none is missing. The work is bounded by `found`, whatever `end` is.
std::string MissingNumbers(const std::set<uint64_t>& found, uint64_t begin, uint64_t end);

}  // namespace fulcrum

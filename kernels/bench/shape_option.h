// What benchmarks take behind --shape: NxK, or several of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace fulcrum::bench {

// False unless the text is two positive numbers.
inline bool ParseShape(const std::string& text, int64_t* n, int64_t* k) {
  const std::vector<std::string> sizes = absl::StrSplit(text, 'x');
  return sizes.size() == 2 && absl::SimpleAtoi(sizes[0], n) && absl::SimpleAtoi(sizes[1], k) &&
         *n > 0 && *k > 0;
}

// The same of NxK,NxK,...; they take the place of what was there.
inline bool ParseShapes(const std::string& text, std::vector<std::pair<int64_t, int64_t>>* shapes) {
  shapes->clear();
  for (const std::string& one : std::vector<std::string>(absl::StrSplit(text, ','))) {
    auto& [n, k] = shapes->emplace_back();
    if (!ParseShape(one, &n, &k)) return false;
  }
  return true;
}

}  // namespace fulcrum::bench

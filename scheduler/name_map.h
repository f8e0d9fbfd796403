// A hash table by name whose insertions may throw and then have changed nothing. Abseil's tables
// are made for code without exceptions: one whose growth runs out of memory is left in pieces. What
// the node still needs when memory is short (exceptions.h) is therefore in the standard library's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace fulcrum {

struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};

template <class T>
using NameMap = std::unordered_map<std::string, T, NameHash, std::equal_to<>>;

}  // namespace fulcrum

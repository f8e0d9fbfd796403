// Digits to numbers, and gaps between sorted numbers.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/whole_numbers.h"

#include <charconv>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fulcrum {

std::optional<uint64_t> WholeNumber(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string MissingNumbers(const std::set<uint64_t>& found, uint64_t begin, uint64_t end) {
  constexpr size_t kShown = 8;
  std::vector<std::string> ranges;
  uint64_t next = begin;
  const auto missing_until = [&](uint64_t stop) {
    if (next >= stop) return;
    ranges.push_back(next + 1 == stop ? absl::StrCat(next) : absl::StrCat(next, " to ", stop - 1));
  };
  for (auto it = found.lower_bound(begin); it != found.end() && *it < end; ++it) {
    missing_until(*it);
    next = *it + 1;
  }
  missing_until(end);
  if (ranges.size() > kShown) {
    ranges.resize(kShown);
    return absl::StrCat(absl::StrJoin(ranges, ", "), " and more");
  }
  if (ranges.size() < 2) return ranges.empty() ? "" : ranges.front();
  const std::string last = ranges.back();
  ranges.pop_back();
  return absl::StrCat(absl::StrJoin(ranges, ", "), " and ", last);
}

}  // namespace fulcrum

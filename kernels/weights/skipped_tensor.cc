// See skipped_tensor.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/skipped_tensor.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace fulcrum {

std::vector<SkipCount> CountByReason(std::span<const SkippedTensor> skipped) {
  std::vector<SkipCount> counts;
  std::map<std::string, size_t> places;
  for (const SkippedTensor& tensor : skipped) {
    const std::string kind = tensor.reason.substr(0, tensor.reason.find(": "));
    const auto [place, is_new] = places.try_emplace(kind, counts.size());
    if (is_new) counts.push_back({.reason = kind, .count = 0, .example = tensor.tensor});
    ++counts[place->second].count;
  }
  std::stable_sort(counts.begin(), counts.end(),
                   [](const SkipCount& a, const SkipCount& b) { return a.count > b.count; });
  return counts;
}

std::string SkipSummary(std::span<const SkippedTensor> skipped) {
  constexpr size_t kShown = 5;
  std::string text = absl::StrCat(skipped.size(), " skipped");
  const std::vector<SkipCount> counts = CountByReason(skipped);
  for (size_t i = 0; i < std::min(counts.size(), kShown); ++i) {
    absl::StrAppend(&text, i == 0 ? ": " : ", ", counts[i].count, " ", counts[i].reason);
  }
  return counts.size() > kShown ? text + ", ..." : text;
}

}  // namespace fulcrum

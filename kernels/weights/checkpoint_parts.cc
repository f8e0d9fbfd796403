// Numbers of parts against the files at hand.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/checkpoint_parts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/weights/file_links.h"
#include "kernels/weights/whole_numbers.h"

namespace fulcrum {
namespace {

constexpr std::string_view kHint =
    "Name the folder or index that holds every part; a tensor of one part can be loaded by its "
    "name";

absl::Status NotWhole(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ". ", std::string(kHint)));
}

// "part 2 is missing", "parts 2 to 3 are missing"
std::string Missing(const std::string& numbers) {
  return numbers.find(' ') == std::string::npos ? absl::StrCat("part ", numbers, " is missing")
                                                : absl::StrCat("parts ", numbers, " are missing");
}

// Takes the digits at the end of `text`.
std::optional<uint64_t> ConsumeNumber(std::string_view& text) {
  const size_t last = text.find_last_not_of("0123456789");
  const size_t begin = last == text.npos ? 0 : last + 1;
  const std::optional<uint64_t> number = WholeNumber(text.substr(begin));
  if (number) text.remove_suffix(text.size() - begin);
  return number;
}

void ConsumeSeparator(std::string_view& text) {
  if (text.ends_with('-') || text.ends_with('_') || text.ends_with('.')) text.remove_suffix(1);
}

// Files whose names differ in the part's number alone.
struct Set {
  std::map<uint64_t, std::string> paths;   // by number
  std::map<uint64_t, std::string> totals;  // with a file that says so
};

absl::Status CheckSet(const Set& set) {
  if (set.totals.size() > 1) {
    const auto& [a, first] = *set.totals.begin();
    const auto& [b, second] = *set.totals.rbegin();
    return NotWhole(absl::StrFormat("parts of two models: %s is one of %d, %s is one of %d", first,
                                    a, second, b));
  }
  const uint64_t total = set.totals.begin()->first;
  const uint64_t begin = set.paths.begin()->first == 0 ? 0 : 1;
  const auto& [last, last_path] = *set.paths.rbegin();
  if (last - begin >= total) {
    return NotWhole(absl::StrFormat("%s says it is part %d of %d, and the first is part %d",
                                    last_path, last, total, begin));
  }
  std::set<uint64_t> found;
  for (const auto& [number, path] : set.paths) found.insert(number);
  const uint64_t end = total + std::min(begin, ~total);  // a total of any size
  const std::string missing = MissingNumbers(found, begin, end);
  if (missing.empty()) return absl::OkStatus();
  return NotWhole(absl::StrFormat("%s is part %d of %d by its name, and %s",
                                  set.paths.begin()->second, set.paths.begin()->first, total,
                                  Missing(missing)));
}

absl::Status CheckNumbers(const std::vector<GgufPart>& parts) {
  std::map<uint64_t, const GgufPart*> by_number;
  for (const GgufPart& part : parts) {
    if (part.number >= part.count) {
      return NotWhole(
          absl::StrFormat("%s says it is part %d of %d; split.no counts from 0, so %d is the last",
                          part.path, part.number, part.count, part.count - 1));
    }
    const auto [other, is_new] = by_number.emplace(part.number, &part);
    if (is_new) continue;
    return NotWhole(absl::StrFormat("%s and %s both say they are part %d of %d (split.no)",
                                    other->second->path, part.path, part.number, part.count));
  }
  std::set<uint64_t> found;
  for (const auto& [number, part] : by_number) found.insert(number);
  const std::string missing = MissingNumbers(found, 0, parts.front().count);
  if (missing.empty()) return absl::OkStatus();
  return NotWhole(absl::StrFormat(
      "%s says it is one of %d parts of a model (split.count), and %s (split.no counts from 0)",
      parts.front().path, parts.front().count, Missing(missing)));
}

absl::Status CheckTensors(const std::vector<GgufPart>& parts) {
  uint64_t held = 0;
  for (const GgufPart& part : parts) held += part.tensors;
  for (const GgufPart& part : parts) {
    if (!part.model_tensors || *part.model_tensors == held) continue;
    return NotWhole(
        absl::StrFormat("%s says the model has %d tensors (split.tensors.count), %d "
                        "are there",
                        part.path, *part.model_tensors, held));
  }
  return absl::OkStatus();
}

// The first of a file's names, from link to link, that says which part it is; else its own.
std::string NumberedName(const std::string& path) {
  for (const std::string& name : LinkChain(path)) {
    if (PartOf(FileName(name))) return name;
  }
  return path;
}

}  // namespace

std::optional<PartName> PartOf(std::string_view file_name) {
  const size_t dot = file_name.rfind('.');
  std::string_view rest = file_name.substr(0, dot);
  PartName part;
  const std::optional<uint64_t> total = ConsumeNumber(rest);
  if (!total) return std::nullopt;
  ConsumeSeparator(rest);
  if (!rest.ends_with("of")) return std::nullopt;
  rest.remove_suffix(2);
  ConsumeSeparator(rest);
  const std::optional<uint64_t> number = ConsumeNumber(rest);
  if (!number) return std::nullopt;
  return PartName{std::string(rest), *number, *total};
}

absl::Status CheckPartNames(const std::vector<std::string>& paths) {
  std::map<std::pair<std::string, std::string>, Set> sets;  // by folder and stem
  for (const std::string& named : paths) {
    const std::string path = NumberedName(named);
    const std::optional<PartName> part = PartOf(FileName(path));
    if (!part) continue;
    Set& set = sets[{FolderOf(path), part->stem}];
    set.totals.emplace(part->total, path);
    const auto [other, is_new] = set.paths.emplace(part->number, path);
    if (is_new || set.totals.size() > 1) continue;
    return NotWhole(absl::StrFormat("%s and %s are both part %d of %d by their names",
                                    other->second, path, part->number, part->total));
  }
  for (const auto& [key, set] : sets) {
    if (absl::Status s = CheckSet(set); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckGgufParts(const std::vector<GgufPart>& parts) {
  const auto split =
      std::find_if(parts.begin(), parts.end(), [](const GgufPart& part) { return part.count > 1; });
  if (split == parts.end()) {
    std::vector<std::string> silent;
    for (const GgufPart& part : parts) {
      if (!part.speaks) silent.push_back(part.path);
    }
    if (absl::Status s = CheckPartNames(silent); !s.ok()) return s;
    if (parts.size() == 1) return CheckTensors(parts);
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s and %s are each a whole model (%d GGUF files are read together); name one of them",
        parts[0].path, parts[1].path, parts.size()));
  }
  for (const GgufPart& part : parts) {
    if (part.count == split->count) continue;
    return NotWhole(absl::StrFormat(
        "%s says it is one of %d parts (split.count), %s says it is one of %d; %d GGUF files are "
        "read together",
        split->path, split->count, part.path, std::max<uint64_t>(part.count, 1), parts.size()));
  }
  if (absl::Status s = CheckNumbers(parts); !s.ok()) return s;
  return CheckTensors(parts);
}

}  // namespace fulcrum

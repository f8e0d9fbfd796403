// The parse of an index, and the comparison of what it promises with what is there.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/safetensors_index.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/weights/file_links.h"
#include "kernels/weights/strict_json.h"

namespace fulcrum {
namespace {

using Kind = JsonScalar::Kind;

// {"metadata": {"total_size": bytes, ...}, "weight_map": {tensor: file}}; other members are for
// manifest.h.
class IndexGrammar final : public JsonGrammar {
 public:
  IndexGrammar() : JsonGrammar(Keys::kUnique) {}

  SafetensorsIndex index;
  bool found = false;  // weight_map
  bool others = false;

 private:
  enum class Part { kNone, kMap, kMetadata };

  bool OnKey(const std::string& name) override {
    if (depth() == 1) {
      part_ = name == "weight_map" ? Part::kMap
              : name == "metadata" ? Part::kMetadata
                                   : Part::kNone;
      found = found || part_ == Part::kMap;
      return part_ != Part::kNone || Other();
    }
    if (part_ == Part::kMetadata) return name == "total_size" || Other();
    index.entries.push_back({name, ""});
    return true;
  }

  bool OnScalar(const JsonScalar& value) override {
    if (depth() == 0) return Fail("an index is a JSON object");
    if (part_ == Part::kMap) return depth() == 2 ? OnFile(value) : NoMap();
    if (depth() == 2) OnTotalSize(value);
    return true;
  }

  bool OnFile(const JsonScalar& value) {
    if (value.kind != Kind::kString) return NoMap();
    index.entries.back().file = value.text;
    return true;
  }

  // Some writers put a whole number as a float. Anything else makes no claim.
  void OnTotalSize(const JsonScalar& value) {
    if (value.kind == Kind::kUnsigned) index.total_size = value.number;
    double number = 0;
    constexpr double kMost = 9e15;  // whole numbers are exact up to here
    if (value.kind != Kind::kFloat) return;
    std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
    if (number > 0 && number < kMost && number == std::floor(number)) {
      index.total_size = static_cast<uint64_t>(number);
    }
  }

  bool OnStart(bool object) override {
    if (depth() == 0) return object || Fail("an index is a JSON object");
    if (part_ == Part::kMap) return (object && depth() == 1) || NoMap();
    return (object && depth() == 1) || Fail("metadata holds plain values");
  }
  bool OnEnd(bool) override { return true; }

  std::string Where() const override { return ""; }
  bool Other() {
    others = true;
    return SkipNext();
  }
  bool NoMap() { return Fail("weight_map maps tensor names to file names"); }

  Part part_ = Part::kNone;
};

// A file name that stays in the index's folder, whatever the file system makes of it.
bool StaysInside(std::string_view file) {
  if (file.empty() || file.front() == '/' || file.find('\\') != file.npos ||
      !CheckTensorName(file).ok()) {
    return false;
  }
  for (size_t begin = 0; begin <= file.size();) {
    const size_t end = std::min(file.find('/', begin), file.size());
    const std::string_view part = file.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

// What the tensors take, counted in one way.
struct Count {
  uint64_t bytes = 0;     // as they are stored
  uint64_t elements = 0;  // those of scale grids apart
  uint64_t scales = 0;
};
void Add(const TensorInfo& tensor, Count& count) {
  std::optional<uint64_t> elements = uint64_t{1};
  for (const int64_t dimension : tensor.shape) {
    elements = elements ? CheckedProduct(*elements, static_cast<uint64_t>(dimension)) : elements;
  }
  count.bytes += tensor.bytes;
  const bool scale = tensor.name.find("_scale") != std::string::npos;
  (scale ? count.scales : count.elements) += elements.value_or(0);
}

}  // namespace

std::vector<std::string> SafetensorsIndex::Files() const {
  std::set<std::string> files;
  for (const Entry& entry : entries) files.insert(entry.file);
  return {files.begin(), files.end()};
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json,
                                                       const std::string& path) {
  const auto refuse = [&path](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(what)));
  };
  IndexGrammar grammar;
  if (absl::Status s = ParseStrictJson(json, grammar); !s.ok()) {
    return refuse(std::string(s.message()));
  }
  if (!grammar.found) return refuse("has no weight_map");
  SafetensorsIndex index = std::move(grammar.index);
  index.path = path;
  if (grammar.others) {
    absl::StatusOr<Manifest> manifest = ParseManifest(json, path, ManifestKind::kConfig);
    if (!manifest.ok()) return manifest.status();
    index.manifest = *std::move(manifest);
  }
  for (const SafetensorsIndex::Entry& entry : index.entries) {
    if (StaysInside(entry.file)) continue;
    return refuse(absl::StrCat("tensor ", Quoted(entry.tensor), " names file ", Quoted(entry.file),
                               "; expected a file inside the index's folder"));
  }
  std::sort(index.entries.begin(), index.entries.end(),
            [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  return index;
}

absl::StatusOr<SafetensorsIndex> ReadSafetensorsIndex(const std::string& path,
                                                      const ReadRule& may_read) {
  constexpr uint64_t kMostBytes = 100'000'000;  // as of a safetensors header
  absl::StatusOr<std::string> text = ReadTextFile(path, kMostBytes, may_read);
  if (!text.ok()) return text.status();
  return ParseSafetensorsIndex(*text, path);
}

absl::Status ApplyIndex(const SafetensorsIndex& index,
                        const std::map<std::string, std::string>& paths,
                        std::vector<TensorInfo>& tensors) {
  std::map<std::string_view, std::string_view> file_of;  // path -> as the index spells it
  for (const auto& [file, path] : paths) file_of[path] = file;
  struct Home {
    std::string_view file;
    bool found = false;
  };
  std::map<std::string_view, Home> homes;
  for (const auto& [tensor, file] : index.entries) homes[tensor] = {file};
  for (const TensorInfo& tensor : tensors) {
    const auto home = homes.find(tensor.name);
    if (home != homes.end() && home->second.file == file_of[tensor.file->path()]) {
      home->second.found = true;
    }
  }
  std::vector<TensorInfo> kept;
  std::set<std::string> unnamed;
  for (TensorInfo& tensor : tensors) {
    const auto home = homes.find(tensor.name);
    if (home == homes.end()) {
      if (!unnamed.insert(tensor.name).second) continue;
      if (tensor.undecided.empty()) {
        tensor.undecided = absl::StrCat("the index ", index.path, " does not name it");
      }
    } else if (home->second.file != file_of[tensor.file->path()]) {
      if (home->second.found) continue;
      tensor.undecided =
          absl::StrCat("the index ", index.path, " places it in ", std::string(home->second.file));
    }
    kept.push_back(std::move(tensor));
  }
  tensors = std::move(kept);
  size_t missing = 0;
  std::string first;
  for (const auto& [tensor, home] : homes) {
    const auto path = paths.find(std::string(home.file));
    if (home.found || path == paths.end()) continue;
    if (++missing == 1) first = absl::StrCat(Quoted(tensor), " in ", path->second);
  }
  if (missing == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s places tensor %s, which does not hold it (%d such tensors)", index.path, first, missing));
}

absl::Status CheckTotalSize(const SafetensorsIndex& index, const std::vector<TensorInfo>& tensors) {
  if (!index.total_size) return absl::OkStatus();
  std::set<std::string, std::less<>> names;
  for (const auto& entry : index.entries) names.insert(entry.tensor);
  Count named, all;
  for (const TensorInfo& tensor : tensors) {
    Add(tensor, all);
    if (names.contains(tensor.name)) Add(tensor, named);
  }
  // An index that is kept from before quantisation counts two bytes for every element, its scales
  // sometimes among them: that of DeepSeek-V3 does.
  constexpr uint64_t kHalf = 2;
  for (const Count& count : {named, all}) {
    for (const uint64_t size :
         {count.bytes, kHalf * count.elements, kHalf * (count.elements + count.scales)}) {
      if (*index.total_size == size) return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: metadata.total_size is %d, the tensors it names take %d bytes: %s. Fetch the files of "
      "one save again, or take total_size out of the index",
      index.path, *index.total_size, named.bytes,
      named.bytes < *index.total_size ? "a part of the model is missing"
                                      : "there is more than belongs to it"));
}

}  // namespace fulcrum

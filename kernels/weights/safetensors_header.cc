// The strict JSON parse of a safetensors header and of a shard index, duplicate keys included.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kMaxDimensions = 16;

// The parts that header and index share: the first complaint wins and ends the parse.
class StrictEvents : public nlohmann::json_sax<Json> {
 public:
  const std::string& error() const { return error_; }

  bool null() override { return Fail("null is not expected"); }
  bool boolean(bool) override { return Fail("a boolean is not expected"); }
  bool number_integer(number_integer_t value) override {
    return Fail(absl::StrCat("number ", value, " is negative"));
  }
  bool number_unsigned(number_unsigned_t) override { return Fail("a number is not expected"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Fail(absl::StrCat("number ", Quoted(text), " is not an integer of 64 bits"));
  }
  bool string(string_t&) override { return Fail("a string is not expected"); }
  bool binary(binary_t&) override { return Fail("binary is not expected"); }
  bool start_array(size_t) override { return Fail("an array is not expected"); }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("not valid JSON at byte ", position));
  }

 protected:
  virtual std::string Where() const = 0;
  bool Fail(std::string_view what) {
    if (error_.empty()) error_ = absl::StrCat(Where(), std::string(what));
    return false;
  }

 private:
  std::string error_;
};

class HeaderEvents final : public StrictEvents {
 public:
  std::vector<SafetensorsEntry> entries;

  bool start_object(size_t) override {
    if (depth_ == 0) return ++depth_ > 0;
    if (depth_ == 1) {
      if (key_ != kMetadata) fields_ = 0;
      return ++depth_ > 0;
    }
    return Fail("an object is not expected");
  }

  bool end_object() override {
    if (depth_ == 2 && key_ != kMetadata && fields_ != kAllFields) {
      return Fail("needs dtype, shape and data_offsets");
    }
    return --depth_ >= 0;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      if (!names_.insert(name).second) {
        return Fail(absl::StrCat("duplicate tensor name ", Quoted(name)));
      }
      key_ = name;
      if (name != kMetadata) entries.emplace_back().name = name;
      return true;
    }
    if (key_ == kMetadata) return true;
    field_ = name == "dtype"          ? kDtype
             : name == "shape"        ? kShape
             : name == "data_offsets" ? kOffsets
                                      : 0;
    if (field_ == 0) return Fail(absl::StrCat("unknown field ", Quoted(name)));
    if ((fields_ & field_) != 0) return Fail(absl::StrCat("duplicate field ", Quoted(name)));
    fields_ |= field_;
    offsets_seen_ = 0;
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && key_ == kMetadata) return true;
    if (depth_ != 2 || field_ != kDtype || in_array_) return Fail("a string is not expected");
    entries.back().dtype = value;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || key_ == kMetadata || in_array_ || field_ == kDtype) {
      return Fail("an array is not expected");
    }
    return in_array_ = true;
  }

  bool end_array() override {
    in_array_ = false;
    if (field_ == kOffsets && offsets_seen_ != 2) return Fail("data_offsets needs two numbers");
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return Fail("a number is not expected");
    SafetensorsEntry& entry = entries.back();
    if (field_ == kShape) {
      if (entry.shape.size() == kMaxDimensions) {
        return Fail(absl::StrCat("shape has more than ", kMaxDimensions, " dimensions"));
      }
      entry.shape.push_back(value);
      return true;
    }
    if (offsets_seen_ == 2) return Fail("data_offsets needs two numbers");
    entry.offsets[offsets_seen_++] = value;
    return true;
  }

 private:
  static constexpr int kDtype = 1, kShape = 2, kOffsets = 4, kAllFields = 7;

  std::string Where() const override {
    return depth_ < 2 ? "header: " : absl::StrCat("header, tensor ", Quoted(key_), ": ");
  }

  int depth_ = 0;  // objects open
  bool in_array_ = false;
  int field_ = 0, fields_ = 0;
  size_t offsets_seen_ = 0;
  std::string key_;
  std::unordered_set<std::string> names_;
};

// {"metadata": anything, "weight_map": {tensor: file}}; other top-level keys are passed over.
class IndexEvents final : public StrictEvents {
 public:
  std::vector<SafetensorsIndex::Entry> entries;
  bool found = false;

  bool null() override { return PassOver("null"); }
  bool boolean(bool) override { return PassOver("a boolean"); }
  bool number_integer(number_integer_t) override { return PassOver("a number"); }
  bool number_unsigned(number_unsigned_t) override { return PassOver("a number"); }
  bool number_float(number_float_t, const string_t&) override { return PassOver("a number"); }
  bool start_array(size_t) override { return PassOver("an array") && Enter(); }
  bool end_array() override { return --depth_ >= 0; }

  bool start_object(size_t) override {
    if (depth_ >= 2 && !PassOver("an object")) return false;
    return Enter();
  }
  bool end_object() override { return --depth_ >= 0; }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      if (in_map_ && found) return Fail("duplicate key 'weight_map'");
      found = found || in_map_;
    } else if (depth_ == 2 && in_map_) {
      if (!names_.insert(name).second) {
        return Fail(absl::StrCat("duplicate tensor name ", Quoted(name)));
      }
      entries.push_back({name, ""});
    }
    return true;
  }

  bool string(string_t& value) override {
    if (!in_map_) return PassOver("a string");
    if (depth_ != 2 || entries.empty()) return Fail("weight_map must be an object");
    entries.back().file = value;
    return true;
  }

 private:
  std::string Where() const override { return ""; }
  bool Enter() {
    constexpr int kMaxDepth = 64;
    return ++depth_ <= kMaxDepth || Fail("nested too deeply");
  }
  // Values outside weight_map do not matter; inside they must be strings.
  bool PassOver(std::string_view what) {
    if (depth_ == 0) return Fail("an index is a JSON object");
    return !in_map_ || Fail(absl::StrCat("weight_map maps tensor names to file names; found ",
                                         std::string(what)));
  }

  int depth_ = 0;
  bool in_map_ = false;
  std::unordered_set<std::string> names_;
};

// A file name that stays in the index's directory, whatever the file system makes of it.
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

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json) {
  if (json.empty() || json.front() != '{') {
    return absl::InvalidArgumentError("header does not begin with '{': not a safetensors file");
  }
  HeaderEvents events;
  if (!Json::sax_parse(json.begin(), json.end(), &events)) {
    return absl::InvalidArgumentError(events.error());
  }
  return std::move(events.entries);
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json,
                                                       const std::string& path) {
  IndexEvents events;
  if (!Json::sax_parse(json.begin(), json.end(), &events)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", events.error()));
  }
  if (!events.found) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has no weight_map"));
  }
  SafetensorsIndex index{std::move(events.entries)};
  for (const SafetensorsIndex::Entry& entry : index.entries) {
    if (StaysInside(entry.file)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor ", Quoted(entry.tensor), " names file ", Quoted(entry.file),
                     "; expected a file inside the index's directory"));
  }
  std::sort(index.entries.begin(), index.entries.end(),
            [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  return index;
}

}  // namespace fulcrum

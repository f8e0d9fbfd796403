// The parse of a safetensors header, duplicate keys included.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/safetensors_header.h"

#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "kernels/weights/strict_json.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {
namespace {

using Kind = JsonScalar::Kind;

constexpr std::string_view kMetadata = "__metadata__";

class HeaderGrammar final : public JsonGrammar {
 public:
  // Keys of __metadata__ and of what is passed over may occur twice for the reference reader, too.
  HeaderGrammar() : JsonGrammar(Keys::kAny) {}

  SafetensorsHeader header;

 private:
  static constexpr int kDtype = 1, kShape = 2, kOffsets = 4, kAllFields = 7;

  bool OnKey(const std::string& name) override {
    if (depth() == 1) return OnTensor(name);
    key_ = name;
    return in_metadata_ || OnField(name);
  }

  bool OnTensor(const std::string& name) {
    if (!names_.insert(name).second) {
      return Fail(absl::StrCat("duplicate tensor name ", Quoted(name)));
    }
    in_metadata_ = name == kMetadata;
    tensor_ = name;
    fields_ = 0;
    if (!in_metadata_) header.entries.emplace_back().name = name;
    return true;
  }

  bool OnField(const std::string& name) {
    field_ = name == "dtype"          ? kDtype
             : name == "shape"        ? kShape
             : name == "data_offsets" ? kOffsets
                                      : 0;
    if (field_ == 0) return SkipNext();
    if ((fields_ & field_) != 0) return Fail(absl::StrCat("duplicate field ", Quoted(name)));
    fields_ |= field_;
    offsets_seen_ = 0;
    return true;
  }

  bool OnScalar(const JsonScalar& value) override {
    if (depth() == 1 && in_metadata_ && value.kind == Kind::kNull) return true;
    if (depth() == 2 && in_metadata_ && value.kind == Kind::kString) {
      header.metadata[key_] = value.text;
      return true;
    }
    if (depth() == 2 && field_ == kDtype && !in_metadata_ && value.kind == Kind::kString) {
      header.entries.back().dtype = value.text;
      return true;
    }
    if (depth() != 3 || value.kind != Kind::kUnsigned) return Unexpected(value);
    SafetensorsEntry& entry = header.entries.back();
    if (field_ == kShape) {
      entry.shape.push_back(value.number);
      return true;
    }
    if (offsets_seen_ == 2) return Fail("data_offsets needs two numbers");
    entry.offsets[offsets_seen_++] = value.number;
    return true;
  }

  bool OnStart(bool object) override {
    const bool expected = depth() < 2 ? object
                                      : !object && depth() == 2 && !in_metadata_ &&
                                            (field_ == kShape || field_ == kOffsets);
    return expected || Unexpected(object);
  }

  bool OnEnd(bool object) override {
    if (!object && field_ == kOffsets && offsets_seen_ != 2) {
      return Fail("data_offsets needs two numbers");
    }
    if (object && depth() == 2 && !in_metadata_ && fields_ != kAllFields) {
      return Fail("needs dtype, shape and data_offsets");
    }
    return true;
  }

  std::string Where() const override {
    return depth() < 2 ? "header: " : absl::StrCat("header, tensor ", Quoted(tensor_), ": ");
  }

  bool in_metadata_ = false;
  int field_ = 0, fields_ = 0;
  size_t offsets_seen_ = 0;
  std::string tensor_, key_;
  std::unordered_set<std::string> names_;
};

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json) {
  const size_t begin = json.find_first_not_of(" \t\r\n");
  if (begin == json.npos || json[begin] != '{') {
    return absl::InvalidArgumentError("header does not begin with '{': not a safetensors file");
  }
  HeaderGrammar grammar;
  if (absl::Status s = ParseStrictJson(json, grammar); !s.ok()) return s;
  return std::move(grammar.header);
}

}  // namespace fulcrum

// The strict layer over the library's event parser.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/strict_json.h"

#include "absl/strings/str_cat.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {
namespace {

using Kind = JsonScalar::Kind;

// Any document; only keys and depth are checked.
class AnyDocument final : public JsonGrammar {
 public:
  AnyDocument() : JsonGrammar(Keys::kUnique) {}

 private:
  bool OnKey(const std::string&) override { return true; }
  bool OnScalar(const JsonScalar&) override { return true; }
  bool OnStart(bool) override { return true; }
  bool OnEnd(bool) override { return true; }
  std::string Where() const override { return ""; }
};

}  // namespace

bool JsonGrammar::SkipNext() {
  skip_ = true;
  skip_depth_ = depth_;
  return true;
}

bool JsonGrammar::Fail(std::string_view what) {
  if (error_.empty()) error_ = absl::StrCat(Where(), std::string(what));
  return false;
}

bool JsonGrammar::Unexpected(const JsonScalar& value) {
  switch (value.kind) {
    case Kind::kNull:
      return Fail("null is not expected");
    case Kind::kBoolean:
      return Fail("a boolean is not expected");
    case Kind::kNegative:
      return Fail("a negative number is not expected");
    case Kind::kFloat:
      return Fail(absl::StrCat("number ", Quoted(value.text), " is not an integer of 64 bits"));
    case Kind::kUnsigned:
      return Fail("a number is not expected");
    case Kind::kString:
      break;
  }
  return Fail("a string is not expected");
}

bool JsonGrammar::Unexpected(bool object) {
  return Fail(object ? "an object is not expected" : "an array is not expected");
}

bool JsonGrammar::null() { return Scalar({Kind::kNull}); }
bool JsonGrammar::boolean(bool) { return Scalar({Kind::kBoolean}); }
bool JsonGrammar::number_integer(number_integer_t) { return Scalar({Kind::kNegative}); }
bool JsonGrammar::number_unsigned(number_unsigned_t value) {
  return Scalar({Kind::kUnsigned, value});
}
bool JsonGrammar::number_float(number_float_t, const string_t& text) {
  return Scalar({Kind::kFloat, 0, text});
}
bool JsonGrammar::string(string_t& value) { return Scalar({Kind::kString, 0, value}); }
bool JsonGrammar::binary(binary_t&) { return Fail("binary is not expected"); }
bool JsonGrammar::start_object(size_t) { return Start(true); }
bool JsonGrammar::end_object() { return End(true); }
bool JsonGrammar::start_array(size_t) { return Start(false); }
bool JsonGrammar::end_array() { return End(false); }
bool JsonGrammar::parse_error(size_t position, const std::string&,
                              const nlohmann::detail::exception&) {
  return Fail(absl::StrCat("not valid JSON at byte ", position));
}

bool JsonGrammar::key(string_t& name) {
  if (unique_keys_ && !keys_.back().insert(name).second) {
    return Fail(absl::StrCat("duplicate key ", Quoted(name)));
  }
  return skip_ || OnKey(name);
}

bool JsonGrammar::Scalar(const JsonScalar& value) {
  if (!skip_) return OnScalar(value);
  if (depth_ == skip_depth_) skip_ = false;
  return true;
}

bool JsonGrammar::Start(bool object) {
  if (!skip_ && !OnStart(object)) return false;
  if (unique_keys_ && object) keys_.emplace_back();
  return ++depth_ <= kMaxJsonDepth || Fail("nested too deeply");
}

bool JsonGrammar::End(bool object) {
  if (!skip_ && !OnEnd(object)) return false;
  if (unique_keys_ && object) keys_.pop_back();
  --depth_;
  if (skip_ && depth_ == skip_depth_) skip_ = false;
  return true;
}

absl::Status ParseStrictJson(std::string_view text, JsonGrammar& grammar) {
  // JSON has no place for a NUL byte: in a string it is written as an escape.
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    return absl::InvalidArgumentError(absl::StrCat("not valid JSON: a NUL byte at byte ", nul));
  }
  if (text.starts_with("\xef\xbb\xbf")) {
    return absl::InvalidArgumentError("not valid JSON: it begins with a byte order mark");
  }
  nlohmann::json_sax<nlohmann::json>* const events = &grammar;
  if (nlohmann::json::sax_parse(text.begin(), text.end(), events)) return absl::OkStatus();
  return absl::InvalidArgumentError(grammar.error());
}

absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text) {
  AnyDocument document;
  if (absl::Status s = ParseStrictJson(text, document); !s.ok()) return s;
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace fulcrum

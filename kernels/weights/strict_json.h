// JSON read as strictly as the reference reader of safetensors reads it (serde_json). The library
// beneath ends at a NUL byte, passes over a byte order mark and nests without a bound; here these
// are errors, so that no text means one thing to us and another thing, or nothing, to others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fulcrum {

// Deepest nesting that the reference reader takes.
inline constexpr int kMaxJsonDepth = 127;

struct JsonScalar {
  enum class Kind { kNull, kBoolean, kNegative, kUnsigned, kFloat, kString };
  Kind kind = Kind::kNull;
  uint64_t number = 0;      // kUnsigned
  std::string_view text{};  // kString: the value; kFloat: as it is written
};

// A grammar over the events of a document, without a tree. Each hook returns true to go on, or
// Fail(...). Values that a grammar passes over are announced by SkipNext.
class JsonGrammar : public nlohmann::json_sax<nlohmann::json> {
 public:
  enum class Keys { kUnique, kAny };

  const std::string& error() const { return error_; }

 protected:
  explicit JsonGrammar(Keys keys) : unique_keys_(keys == Keys::kUnique) {}

  // depth() counts the containers that are open: the key's object, or those around the value.
  virtual bool OnKey(const std::string& name) = 0;
  virtual bool OnScalar(const JsonScalar& value) = 0;
  virtual bool OnStart(bool object) = 0;  // before the container counts
  virtual bool OnEnd(bool object) = 0;    // while it still counts
  virtual std::string Where() const = 0;  // prefix of an error

  int depth() const { return depth_; }
  // From OnKey: the value that follows is checked for its syntax alone.
  bool SkipNext();
  bool Fail(std::string_view what);
  // "a number is not expected" and the like.
  bool Unexpected(const JsonScalar& value);
  bool Unexpected(bool object);

 private:
  bool null() final;
  bool boolean(bool value) final;
  bool number_integer(number_integer_t value) final;
  bool number_unsigned(number_unsigned_t value) final;
  bool number_float(number_float_t value, const string_t& text) final;
  bool string(string_t& value) final;
  bool binary(binary_t& value) final;
  bool start_object(size_t size) final;
  bool key(string_t& name) final;
  bool end_object() final;
  bool start_array(size_t size) final;
  bool end_array() final;
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) final;

  bool Scalar(const JsonScalar& value);
  bool Start(bool object);
  bool End(bool object);

  const bool unique_keys_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
  int depth_ = 0;
  bool skip_ = false;
  int skip_depth_ = 0;  // depth at which the value that is skipped began
  std::string error_;
};

// INVALID_ARGUMENT with the first complaint, unless `text` is one whole document of the grammar.
absl::Status ParseStrictJson(std::string_view text, JsonGrammar& grammar);

// A document as a tree; the keys of an object are unique.
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text);

}  // namespace fulcrum

// See text.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fulcrum::cli {
namespace {

// The character at `at` and its length in bytes; length 0 where it is not UTF-8.
struct Character {
  uint32_t code = 0;
  size_t length = 0;
};

Character At(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) -> uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const uint32_t first = byte(at);
  if (first < 0x80) return {first, 1};
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return {};
  uint32_t code = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  const bool is_short = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  if (is_short || is_surrogate || code > 0x10ffff) return {};
  return {code, length};
}

// Controls, separators of lines, and marks that reverse what stands behind them.
bool Steers(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

absl::Status CheckUtf8(const std::string& option, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = At(text, at).length;
    if (length == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, ": expected UTF-8, got \"", OneLine(text), "\""));
    }
    at += length;
  }
  return absl::OkStatus();
}

std::string OneLine(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Character character = At(text, at);
    const size_t length = character.length == 0 ? 1 : character.length;
    if (character.length > 0 && !Steers(character.code)) {
      out.append(text, at, length);
    } else if (text[at] == '\n' || text[at] == '\r' || text[at] == '\t') {
      absl::StrAppend(&out, "\\", text[at] == '\n' ? "n" : text[at] == '\r' ? "r" : "t");
    } else {
      for (size_t i = at; i < at + length; ++i) {
        absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(text[i]));
      }
    }
    at += length;
  }
  return out;
}

}  // namespace fulcrum::cli

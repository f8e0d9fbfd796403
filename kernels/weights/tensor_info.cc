// Names and sizes of the tensor types that the readers speak of.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/tensor_info.h"

#include <algorithm>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fulcrum {
namespace {

constexpr size_t kMaxNameBytes = 1024;

// Length of the well-formed UTF-8 sequence at the start of `text`, 0 when there is none.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // The second byte rules out overlong forms, surrogates and what lies beyond U+10FFFF.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) {
  constexpr size_t kShown = 16;
  const auto end = shape.begin() + static_cast<ptrdiff_t>(std::min(shape.size(), kShown));
  return absl::StrCat("[", absl::StrJoin(shape.begin(), end, ", "),
                      shape.size() > kShown ? ", ...]" : "]");
}

std::optional<uint64_t> CheckedProduct(uint64_t a, uint64_t b) {
  constexpr uint64_t kLimit = std::numeric_limits<int64_t>::max();
  if (b != 0 && a > kLimit / b) return std::nullopt;
  return a * b;
}

absl::Status CheckTensorName(std::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("a tensor has an empty name");
  if (name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor name ", Quoted(name), " has ",
                                                   name.size(), " bytes; at most ", kMaxNameBytes,
                                                   " are read"));
  }
  for (size_t i = 0; i < name.size();) {
    const auto lead = static_cast<unsigned char>(name[i]);
    const size_t length = Utf8Length(name.substr(i));
    if (length == 0 || lead < 0x20 || lead == 0x7f) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name ", Quoted(name), " is not printable UTF-8 at byte ", i));
    }
    i += length;
  }
  return absl::OkStatus();
}

std::string Quoted(std::string_view name) {
  constexpr size_t kShown = 128;
  const absl::string_view shown(name.data(), std::min(name.size(), kShown));
  return absl::StrCat("'", absl::CHexEscape(shown), name.size() > kShown ? "..." : "", "'");
}

void SetName(std::string_view name, size_t number, TensorInfo& tensor) {
  const absl::Status status = CheckTensorName(name);
  tensor.name = status.ok() ? std::string(name) : absl::StrCat(Quoted(name), "#", number);
  if (!status.ok()) tensor.undecided = std::string(status.message());
}

}  // namespace fulcrum

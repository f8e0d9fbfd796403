// The streamed parse of a GGUF header: every count and length is held against what the file has
// left.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/gguf_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/weights/gguf.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {
namespace {

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kValueTypes,
};
// Bytes of a value; for a string or an array, the least it can take.
constexpr std::array<uint64_t, kValueTypes> kValueBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
constexpr uint64_t kLeastKeyValueBytes = 8 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr int kMaxArrayDepth = 16;

absl::Status Malformed(const std::string& what) { return absl::InvalidArgumentError(what); }

// Reads forward through a window of the file. The first error sticks: later reads return zeros, so
// that a record can be read whole and checked once.
class Reader {
 public:
  explicit Reader(const WeightFile& file) : file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return file_.size() - position_; }
  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  void Fail(const std::string& what) {
    if (ok()) status_ = Malformed(what);
  }

  template <class T>
  T Number(std::string_view what) {
    T value{};
    Bytes(std::as_writable_bytes(std::span(&value, 1)), what);
    return value;
  }

  // A length-prefixed string; `limit` bounds what is kept in memory.
  std::string String(std::string_view what, uint64_t limit) {
    const uint64_t length = Length(what);
    if (length > limit) {
      Fail(absl::StrCat(std::string(what), " has ", length, " bytes; the limit is ", limit));
    }
    if (!ok()) return {};
    std::string text(length, '\0');
    Bytes(std::as_writable_bytes(std::span(text)), what);
    return text;
  }
  void SkipString(std::string_view what) { Skip(Length(what)); }

  void Skip(uint64_t bytes) {
    if (bytes > left()) Fail(absl::StrFormat("%d bytes at %d run past the end", bytes, position_));
    if (ok()) position_ += bytes;
  }

 private:
  uint64_t Length(std::string_view what) {
    const auto length = Number<uint64_t>(what);
    if (length > left()) {
      Fail(absl::StrFormat("%s at byte %d claims %d bytes, the file has %d left", what, position_,
                           length, left()));
    }
    return ok() ? length : 0;
  }

  void Bytes(std::span<std::byte> out, std::string_view what) {
    if (out.size() > left()) {
      Fail(absl::StrFormat("the file ends inside %s at byte %d", what, position_));
    }
    while (ok() && !out.empty()) {
      if (position_ < begin_ || position_ >= begin_ + window_.size()) Refill();
      if (!ok()) return;
      const size_t at = position_ - begin_;
      const size_t count = std::min(out.size(), window_.size() - at);
      std::copy_n(window_.begin() + static_cast<ptrdiff_t>(at), count, out.begin());
      out = out.subspan(count);
      position_ += count;
    }
  }

  void Refill() {
    constexpr uint64_t kWindow = 256 << 10;
    begin_ = position_;
    window_.resize(std::min(kWindow, left()));
    status_ = file_.Read(begin_, window_);
  }

  const WeightFile& file_;
  uint64_t position_ = 0;
  uint64_t begin_ = 0;
  std::vector<std::byte> window_;
  absl::Status status_;
};

void SkipValue(Reader& in, uint32_t type, int depth) {
  if (type >= kValueTypes) {
    in.Fail(absl::StrFormat("value type %d at byte %d is unknown; expected 0..%d", type,
                            in.position(), kValueTypes - 1));
    return;
  }
  if (type == kString) return in.SkipString("a string value");
  if (type != kArray) return in.Skip(kValueBytes[type]);
  if (depth == kMaxArrayDepth) {
    in.Fail(absl::StrCat("arrays are nested more than ", kMaxArrayDepth, " deep"));
    return;
  }
  const auto item = in.Number<uint32_t>("an array's element type");
  const auto count = in.Number<uint64_t>("an array's length");
  if (!in.ok()) return;
  if (item >= kValueTypes) return SkipValue(in, item, depth);
  if (count > in.left() / kValueBytes[item]) {
    in.Fail(
        absl::StrFormat("an array claims %d elements of at least %d bytes, the file has %d left",
                        count, kValueBytes[item], in.left()));
    return;
  }
  if (item != kString && item != kArray) return in.Skip(count * kValueBytes[item]);
  for (uint64_t i = 0; i < count && in.ok(); ++i) SkipValue(in, item, depth + 1);
}

std::optional<uint64_t> NotNegative(int64_t value) {
  if (value < 0) return std::nullopt;
  return static_cast<uint64_t>(value);
}

bool IsSplitKey(std::string_view key) {
  return key == kGgufSplitNo || key == kGgufSplitCount || key == kGgufSplitTensors;
}

// The value as an unsigned integer, or nothing (and the value is skipped) when it is of another
// kind.
std::optional<uint64_t> UnsignedValue(Reader& in, uint32_t type) {
  switch (type) {
    case kU8:
      return in.Number<uint8_t>("a value");
    case kU16:
      return in.Number<uint16_t>("a value");
    case kU32:
      return in.Number<uint32_t>("a value");
    case kU64:
      return in.Number<uint64_t>("a value");
    case kI8:
      return NotNegative(in.Number<int8_t>("a value"));
    case kI16:
      return NotNegative(in.Number<int16_t>("a value"));
    case kI32:
      return NotNegative(in.Number<int32_t>("a value"));
    case kI64:
      return NotNegative(in.Number<int64_t>("a value"));
    default:
      SkipValue(in, type, 0);
      return std::nullopt;
  }
}

void ReadKeyValue(Reader& in, std::unordered_set<std::string>& seen, GgufHeader& header) {
  const std::string key = in.String("a metadata key", kMaxKeyBytes);
  const auto type = in.Number<uint32_t>("a value's type");
  if (!in.ok()) return;
  if (key.empty()) return in.Fail("a metadata key is empty");
  if (!seen.insert(key).second)
    return in.Fail(absl::StrCat("duplicate metadata key ", Quoted(key)));
  if (key == "general.alignment") {
    const std::optional<uint64_t> value = UnsignedValue(in, type);
    if (!in.ok()) return;
    if (!value || !std::has_single_bit(*value) || *value > (uint64_t{1} << 31)) {
      return in.Fail(value ? absl::StrCat("general.alignment is ", *value,
                                          "; expected a power of two up to 2^31")
                           : "general.alignment is not an unsigned integer");
    }
    header.alignment = *value;
  } else if (key == "general.architecture" && type == kString) {
    constexpr uint64_t kMaxArchitecture = 256;
    header.architecture = in.String("general.architecture", kMaxArchitecture);
  } else if (IsSplitKey(key) || key.ends_with(kGgufBlockCount) || key.ends_with(kGgufDraftLayers)) {
    const std::optional<uint64_t> value = UnsignedValue(in, type);
    if (!in.ok()) return;
    if (value) header.counts[key] = *value;
    if (!value && IsSplitKey(key)) in.Fail(absl::StrCat(key, " is not an unsigned integer"));
  } else {
    SkipValue(in, type, 0);
  }
}

void ReadTensorRecord(Reader& in, std::unordered_set<std::string>& seen, GgufHeader& header) {
  GgufTensorRecord record;
  record.name = in.String("a tensor name", kMaxKeyBytes);
  const auto dimensions = in.Number<uint32_t>("a tensor's number of dimensions");
  if (!in.ok()) return;
  if (dimensions > in.left() / sizeof(uint64_t)) {
    return in.Fail(absl::StrFormat("tensor %s claims %d dimensions, the file has %d bytes left",
                                   Quoted(record.name), dimensions, in.left()));
  }
  for (uint32_t i = 0; i < dimensions; ++i) {
    record.dimensions.push_back(in.Number<uint64_t>("a dimension"));
  }
  record.type = in.Number<uint32_t>("a tensor's type");
  record.offset = in.Number<uint64_t>("a tensor's offset");
  if (!in.ok()) return;
  if (!seen.insert(record.name).second) {
    return in.Fail(absl::StrCat("duplicate tensor name ", Quoted(record.name)));
  }
  header.tensors.push_back(std::move(record));
}

}  // namespace

absl::StatusOr<GgufHeader> ReadGgufHeader(const WeightFile& file) {
  Reader in(file);
  std::array<char, 4> magic{};
  for (char& c : magic) c = in.Number<char>("the magic");
  GgufHeader header;
  header.version = in.Number<uint32_t>("the version");
  if (!in.ok()) return in.status();
  if (std::string_view(magic.data(), magic.size()) != kGgufMagic) {
    return Malformed("does not begin with GGUF: not a GGUF file");
  }
  if ((header.version & 0xffff) == 0 && header.version != 0) {
    return Malformed("is a big-endian GGUF file; only little-endian is read");
  }
  if (header.version != 2 && header.version != 3) {
    return Malformed(absl::StrCat("has GGUF version ", header.version, "; 2 and 3 are read"));
  }
  const auto tensors = in.Number<uint64_t>("the tensor count");
  const auto pairs = in.Number<uint64_t>("the metadata count");
  if (!in.ok()) return in.status();
  if (pairs > in.left() / kLeastKeyValueBytes || tensors > in.left() / kLeastTensorBytes) {
    return Malformed(
        absl::StrFormat("claims %d metadata pairs and %d tensors, more than its %d bytes can hold",
                        pairs, tensors, file.size()));
  }
  std::unordered_set<std::string> keys;
  for (uint64_t i = 0; i < pairs && in.ok(); ++i) ReadKeyValue(in, keys, header);
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < tensors && in.ok(); ++i) ReadTensorRecord(in, names, header);
  if (!in.ok()) return in.status();
  header.end = in.position();
  return header;
}

}  // namespace fulcrum

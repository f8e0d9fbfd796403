// Reading half of project_codec.h: a cursor over the slices of a message and the field loop.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "service/project_codec.h"

namespace fulcrum::service {
namespace {

enum WireType : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kLength = 2,
  kGroupStart = 3,
  kGroupEnd = 4,
  kFixed32 = 5,
};

constexpr uint32_t Tag(uint32_t field, WireType type) { return field << 3 | type; }

// Limits of the protobuf parser, so that both accept the same messages.
constexpr int kMaxGroupDepth = 100;
constexpr uint32_t kMaxLength = 0x7fffffffu - 16;

// Reads forward over slices. A read that fails leaves the cursor anywhere: parsing stops then.
class Cursor {
 public:
  explicit Cursor(const std::vector<grpc::Slice>& slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices) left_ += slice.size();
    size_ = left_;
    NextSlice();
  }

  size_t left() const { return left_; }
  size_t offset() const { return size_ - left_; }

  bool Varint64(uint64_t* value) {
    uint64_t result = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      uint8_t byte;
      if (!Byte(&byte)) return false;
      if (shift < 64) result |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        *value = result;
        return true;
      }
    }
    return false;
  }

  // Tags have at most five bytes; bits beyond the 32nd are dropped.
  bool Tag32(uint32_t* tag) {
    uint64_t result = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      uint8_t byte;
      if (!Byte(&byte)) return false;
      result |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        *tag = static_cast<uint32_t>(result);
        return true;
      }
    }
    return false;
  }

  // A length that the rest of the message can hold.
  bool Length(size_t* length) {
    uint64_t result = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      uint8_t byte;
      if (!Byte(&byte)) return false;
      result |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        *length = static_cast<size_t>(result);
        return result <= kMaxLength && result <= left_;
      }
    }
    return false;
  }

  bool Skip(size_t count) {
    return Take(count, [](const uint8_t*, size_t) {});
  }

  bool String(std::string* out) {
    size_t length;
    if (!Length(&length)) return false;
    out->clear();
    out->reserve(length);
    return Take(length, [out](const uint8_t* data, size_t n) {
      out->append(reinterpret_cast<const char*>(data), n);
    });
  }

  bool Reference(Pieces* out, int64_t* size) {
    size_t length;
    if (!Length(&length)) return false;
    out->clear();
    *size = static_cast<int64_t>(length);
    return Take(length, [out](const uint8_t* data, size_t n) { out->emplace_back(data, n); });
  }

 private:
  bool Byte(uint8_t* byte) {
    if (left_ == 0) return false;
    *byte = *pos_++;
    --left_;
    if (pos_ == end_) NextSlice();
    return true;
  }

  // Hands `count` bytes to `visit`, slice by slice.
  template <class Visit>
  bool Take(size_t count, Visit visit) {
    if (count > left_) return false;
    left_ -= count;
    while (count > 0) {
      const size_t n = std::min(count, static_cast<size_t>(end_ - pos_));
      visit(pos_, n);
      pos_ += n;
      count -= n;
      if (pos_ == end_) NextSlice();
    }
    return true;
  }

  void NextSlice() {
    while (next_ < slices_.size()) {
      const grpc::Slice& slice = slices_[next_++];
      if (slice.size() == 0) continue;
      pos_ = slice.begin();
      end_ = slice.end();
      return;
    }
  }

  const std::vector<grpc::Slice>& slices_;
  size_t next_ = 0;
  const uint8_t* pos_ = nullptr;
  const uint8_t* end_ = nullptr;
  size_t left_ = 0;
  size_t size_ = 0;
};

// Skips the value of a field that this build does not know, groups with all they hold.
bool SkipField(Cursor& in, uint32_t tag, int depth) {
  if (tag >> 3 == 0) return false;
  switch (tag & 7) {
    case kVarint: {
      uint64_t ignored;
      return in.Varint64(&ignored);
    }
    case kFixed64:
      return in.Skip(8);
    case kFixed32:
      return in.Skip(4);
    case kLength: {
      size_t length;
      return in.Length(&length) && in.Skip(length);
    }
    case kGroupStart: {
      if (depth == 0) return false;
      for (;;) {
        uint32_t inner;
        if (in.left() == 0 || !in.Tag32(&inner)) return false;
        if ((inner & 7) == kGroupEnd) return inner == tag + (kGroupEnd - kGroupStart);
        if (inner == 0 || !SkipField(in, inner, depth - 1)) return false;
      }
    }
    default:
      return false;
  }
}

// Well-formed UTF-8 (no surrogates, no overlong forms, at most U+10FFFF): proto3 strings must be.
bool IsUtf8(std::string_view s) {
  const auto* p = reinterpret_cast<const uint8_t*>(s.data());
  const auto* const end = p + s.size();
  const auto tail = [&p, end](int count, uint8_t first_min, uint8_t first_max) {
    if (end - p <= count) return false;
    if (p[1] < first_min || p[1] > first_max) return false;
    for (int i = 2; i <= count; ++i) {
      if ((p[i] & 0xc0) != 0x80) return false;
    }
    p += count + 1;
    return true;
  };
  while (p != end) {
    const uint8_t c = *p;
    bool ok = false;
    if (c < 0x80) {
      ++p;
      ok = true;
    } else if (c >= 0xc2 && c <= 0xdf) {
      ok = tail(1, 0x80, 0xbf);
    } else if (c >= 0xe0 && c <= 0xef) {
      ok = tail(2, c == 0xe0 ? 0xa0 : 0x80, c == 0xed ? 0x9f : 0xbf);
    } else if (c >= 0xf0 && c <= 0xf4) {
      ok = tail(3, c == 0xf0 ? 0x90 : 0x80, c == 0xf4 ? 0x8f : 0xbf);
    }
    if (!ok) return false;
  }
  return true;
}

bool ReadInt64(Cursor& in, int64_t* value) {
  uint64_t raw;
  if (!in.Varint64(&raw)) return false;
  *value = static_cast<int64_t>(raw);
  return true;
}

bool ReadEnum(Cursor& in, int32_t* value) {
  uint64_t raw;
  if (!in.Varint64(&raw)) return false;
  *value = static_cast<int32_t>(static_cast<uint32_t>(raw));
  return true;
}

bool ReadString(Cursor& in, std::string* value) { return in.String(value) && IsUtf8(*value); }

// A name has two bytes or more on the wire and thirty or more in memory.
bool ReadShard(Cursor& in, ProjectRequest* request) {
  if (request->shards.size() < kMaxKeptShards) {
    return ReadString(in, &request->shards.emplace_back());
  }
  ++request->more_shards;
  std::string checked;
  return ReadString(in, &checked);
}

// One field; the last one of a singular field wins, as protobuf has it. A known number with another
// wire type is an unknown field.
bool ReadField(Cursor& in, uint32_t tag, ProjectRequest* request) {
  switch (tag) {
    case Tag(1, kLength):
      return ReadString(in, &request->call_id);
    case Tag(2, kLength):
      return ReadShard(in, request);
    case Tag(3, kVarint):
      return ReadInt64(in, &request->rows);
    case Tag(4, kVarint):
      return ReadEnum(in, &request->activation_type);
    case Tag(5, kLength):
      return in.Reference(&request->activations, &request->activations_size);
    case Tag(6, kVarint):
      return ReadInt64(in, &request->activation_pitch);
    case Tag(7, kVarint):
      return ReadEnum(in, &request->output_type);
    case Tag(8, kVarint):
      return ReadInt64(in, &request->output_pitch);
    case Tag(9, kVarint):
      return ReadEnum(in, &request->step);
    case Tag(10, kVarint):
      return ReadEnum(in, &request->policy);
    default:
      return SkipField(in, tag, kMaxGroupDepth);
  }
}

}  // namespace

absl::Status ParseProjectRequest(const grpc::ByteBuffer& bytes, ProjectRequest* request) {
  *request = ProjectRequest();
  if (!bytes.Valid()) return absl::OkStatus();  // a message of no bytes
  if (!bytes.Dump(&request->slices).ok()) {
    return absl::InvalidArgumentError("the request could not be decompressed");
  }
  Cursor in(request->slices);
  while (in.left() > 0) {
    uint32_t tag;
    if (!in.Tag32(&tag) || !ReadField(in, tag, request)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the request is not a fulcrum.v1.ProjectRequest: malformed before byte ",
                       in.offset(), " of ", in.offset() + in.left()));
    }
  }
  return absl::OkStatus();
}

}  // namespace fulcrum::service

// A reader over the pieces of a payload and the three element types.
// SPDX-License-Identifier: Apache-2.0
#include "service/payload.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <vector>

#include "kernels/formats/bf16.h"

namespace fulcrum::service {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian");

class PieceReader {
 public:
  explicit PieceReader(const Pieces& pieces) : pieces_(pieces) {}

  void Copy(void* out, size_t count) {
    auto* to = static_cast<std::byte*>(out);
    Visit(count, [&to](const uint8_t* data, size_t n) {
      std::memcpy(to, data, n);
      to += n;
    });
  }
  void Skip(size_t count) {
    Visit(count, [](const uint8_t*, size_t) {});
  }

 private:
  template <class Use>
  void Visit(size_t count, Use use) {
    while (count > 0) {
      assert(piece_ < pieces_.size());
      const auto& piece = pieces_[piece_];
      const size_t n = std::min(count, piece.size() - offset_);
      use(piece.data() + offset_, n);
      offset_ += n;
      count -= n;
      if (offset_ == piece.size()) {
        ++piece_;
        offset_ = 0;
      }
    }
  }

  const Pieces& pieces_;
  size_t piece_ = 0, offset_ = 0;
};

// Every F16 value's BF16: 128 KiB instead of a conversion through F32 for each element.
const std::vector<uint16_t>& F16Table() {
  static const auto* const table = [] {
    auto* values = new std::vector<uint16_t>(1 << 16);
    for (uint32_t bits = 0; bits < values->size(); ++bits) {
      (*values)[bits] = F32ToBf16(F16ToF32(static_cast<uint16_t>(bits)));
    }
    return values;
  }();
  return *table;
}

// Converts `count` elements through a small buffer that stays in the first-level cache.
template <class Element, class Convert>
void ConvertRow(PieceReader& in, int64_t count, uint16_t* out, Convert convert) {
  std::array<Element, 1024> chunk;
  while (count > 0) {
    const auto n = static_cast<size_t>(std::min<int64_t>(count, int64_t{chunk.size()}));
    in.Copy(chunk.data(), n * sizeof(Element));
    for (size_t i = 0; i < n; ++i) out[i] = convert(chunk[i]);
    out += n;
    count -= static_cast<int64_t>(n);
  }
}

void GatherRow(PieceReader& in, DType type, int64_t k, uint16_t* out) {
  switch (type) {
    case DType::kBf16:
      in.Copy(out, static_cast<size_t>(k) * sizeof(uint16_t));
      break;
    case DType::kF16: {
      const std::vector<uint16_t>& table = F16Table();
      ConvertRow<uint16_t>(in, k, out, [&table](uint16_t bits) { return table[bits]; });
      break;
    }
    case DType::kF32:
      ConvertRow<float>(in, k, out, [](float value) { return F32ToBf16(value); });
      break;
  }
}

}  // namespace

void GatherBf16(const Pieces& pieces, const PayloadLayout& layout, uint16_t* out) {
  PieceReader in(pieces);
  if (layout.pitch == layout.k) {
    GatherRow(in, layout.type, layout.rows * layout.k, out);
    return;
  }
  const auto gap = static_cast<size_t>(layout.pitch - layout.k) * SizeOf(layout.type);
  for (int64_t row = 0; row < layout.rows; ++row) {
    if (row > 0) in.Skip(gap);
    GatherRow(in, layout.type, layout.k, out + row * layout.k);
  }
}

}  // namespace fulcrum::service

// Tensors of a GGUF file: extents, overlap, and the Q2_0 block size by byte extent.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/gguf.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/formats/q2_0.h"
#include "kernels/weights/gguf_header.h"
#include "kernels/weights/gguf_types.h"

namespace fulcrum {
namespace {

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

TensorType TypeOf(uint32_t id) {
  switch (id) {
    case kGgufF32:
      return TensorType::kF32;
    case kGgufF16:
      return TensorType::kF16;
    case kGgufBf16:
      return TensorType::kBf16;
    case kGgufQ2_0:
      return TensorType::kQ2_0;
    default:
      return TensorType::kOther;
  }
}

absl::Status Malformed(const WeightFile& file, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", what));
}

// A header that is right in itself but speaks of more bytes than there are.
absl::Status CutShort(const WeightFile& file, const std::string& what) {
  return absl::DataLossError(absl::StrCat(file.path(), ": ", what, "; the file is cut short"));
}

// Where the data lies, and what every tensor of the file is checked against.
struct DataSection {
  std::shared_ptr<const WeightFile> file;
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t alignment = 0;
};

// Bytes of `elements` weights in blocks, or nothing when rows of `k` do not split into whole
// blocks.
std::optional<uint64_t> BlockedBytes(uint64_t elements, uint64_t k, uint64_t block,
                                     uint64_t block_bytes) {
  if (k % block != 0) return std::nullopt;
  return CheckedProduct(elements / block, block_bytes);
}

// `extent` is the distance to the next tensor or to the end of the data: a tensor fills it, but for
// padding to the alignment.
bool Fills(std::optional<uint64_t> bytes, uint64_t extent, uint64_t alignment) {
  return bytes && (extent == *bytes || extent == AlignUp(*bytes, alignment));
}

// `last`: the extent ends with the data.
absl::Status DecideQ2(const DataSection& data, uint64_t elements, uint64_t extent, bool last,
                      TensorInfo& info) {
  const auto k = static_cast<uint64_t>(info.shape.back());
  const auto bytes_of = [&](int block) {
    return BlockedBytes(elements, k, static_cast<uint64_t>(block),
                        static_cast<uint64_t>(Q2BlockBytes(block)));
  };
  const std::optional<uint64_t> bytes64 = bytes_of(64), bytes128 = bytes_of(128);
  const bool is64 = Fills(bytes64, extent, data.alignment);
  const bool is128 = Fills(bytes128, extent, data.alignment);
  const auto text = [](std::optional<uint64_t> bytes) {
    return bytes ? absl::StrCat(*bytes) : std::string("none (K is not a multiple of the block)");
  };
  const std::string extents = absl::StrFormat(
      "blocks of 64 weights take %s bytes, blocks of 128 take %s, the tensor's extent is %d "
      "(alignment %d)",
      text(bytes64), text(bytes128), extent, data.alignment);
  if (!is64 && !is128) {
    const std::string what =
        absl::StrCat("Q2_0 tensor ", Quoted(info.name), " ", ShapeText(info.shape),
                     " matches neither block size: ", extents);
    // Blocks of 64 take the most. Whatever ends the file below that is a piece of something.
    return last && bytes64 && extent < *bytes64 ? CutShort(*data.file, what)
                                                : Malformed(*data.file, what);
  }
  if (is64 && is128) {
    info.undecided = absl::StrCat("Q2_0 tensor matches both block sizes: ", extents);
    info.bytes = std::min(*bytes64, *bytes128);
    return absl::OkStatus();
  }
  info.q2_block = is64 ? 64 : 128;
  info.bytes = is64 ? *bytes64 : *bytes128;
  return absl::OkStatus();
}

// `next` is the data offset of the tensor after this one, or the data's end.
absl::StatusOr<TensorInfo> CheckRecord(const DataSection& data, const GgufTensorRecord& record,
                                       uint64_t next) {
  const std::string where = absl::StrCat("tensor ", Quoted(record.name));
  const GgufTypeRow* row = FindGgufType(record.type);
  if (row == nullptr) {
    return Malformed(*data.file, absl::StrFormat("%s has unknown type id %d; its size cannot be "
                                                 "checked",
                                                 where, record.type));
  }
  TensorInfo info;
  info.name = record.name;
  info.type = TypeOf(record.type);
  info.dtype = std::string(row->name);
  info.file = data.file;
  std::optional<uint64_t> elements = uint64_t{1};
  for (const uint64_t dimension : record.dimensions) {
    if (dimension == 0) {
      return Malformed(*data.file, absl::StrCat(where, " has a dimension of 0"));
    }
    elements = elements ? CheckedProduct(*elements, dimension) : std::nullopt;
    info.shape.insert(info.shape.begin(), static_cast<int64_t>(dimension));
  }
  // 8 bytes is the most that any type takes for a weight.
  if (!elements || !CheckedProduct(*elements, 8)) {
    return Malformed(*data.file, absl::StrCat(where, ": the product of its dimensions overflows"));
  }
  if (record.offset % data.alignment != 0) {
    return Malformed(*data.file,
                     absl::StrFormat("%s: offset %d is not a multiple of the alignment %d", where,
                                     record.offset, data.alignment));
  }
  if (record.offset > data.bytes) {
    return CutShort(*data.file, absl::StrFormat("%s: offset %d is outside the file's %d data bytes",
                                                where, record.offset, data.bytes));
  }
  info.offset = data.begin + record.offset;
  const uint64_t extent = next - record.offset;
  const bool last = next == data.bytes;
  if (info.type == TensorType::kQ2_0) {
    if (absl::Status s = DecideQ2(data, *elements, extent, last, info); !s.ok()) return s;
    return info;
  }
  if (row->block == 0) {
    info.bytes = extent;
    return info;
  }
  const std::optional<uint64_t> bytes =
      BlockedBytes(*elements, record.dimensions.front(), row->block, row->block_bytes);
  if (!bytes) {
    return Malformed(*data.file,
                     absl::StrFormat("%s: rows of %d do not split into %s blocks of %d", where,
                                     record.dimensions.front(), row->name, row->block));
  }
  if (*bytes > extent) {
    const std::string what = absl::StrFormat(
        "%s: %s of %s takes %d bytes, only %d lie before %s", where, ShapeText(info.shape),
        row->name, *bytes, extent, last ? "the end of the data" : "the next tensor");
    return last ? CutShort(*data.file, what) : Malformed(*data.file, what);
  }
  info.bytes = *bytes;
  return info;
}

}  // namespace

absl::StatusOr<GgufContents> ParseGguf(const std::shared_ptr<const WeightFile>& file) {
  absl::StatusOr<GgufHeader> header = ReadGgufHeader(*file);
  if (!header.ok()) {
    return absl::Status(header.status().code(),
                        absl::StrCat(file->path(), ": ", header.status().message()));
  }
  std::vector<GgufTensorRecord>& records = header->tensors;
  std::sort(records.begin(), records.end(),
            [](const GgufTensorRecord& a, const GgufTensorRecord& b) {
              return std::tie(a.offset, a.name) < std::tie(b.offset, b.name);
            });
  DataSection data{.file = file,
                   .begin = AlignUp(header->end, header->alignment),
                   .bytes = 0,
                   .alignment = header->alignment};
  if (data.begin > file->size() && !records.empty()) {
    return Malformed(*file, absl::StrFormat("data begins at byte %d, the file has %d bytes",
                                            data.begin, file->size()));
  }
  data.bytes = file->size() - std::min(data.begin, file->size());

  GgufContents contents;
  contents.version = header->version;
  contents.alignment = static_cast<uint32_t>(header->alignment);
  contents.architecture = header->architecture;
  contents.split_no = header->split_no;
  contents.split_count = header->split_count;
  for (size_t i = 0; i < records.size(); ++i) {
    const uint64_t next =
        i + 1 < records.size() ? std::min(records[i + 1].offset, data.bytes) : data.bytes;
    absl::StatusOr<TensorInfo> info = CheckRecord(data, records[i], next);
    if (!info.ok()) return info.status();
    contents.tensors.push_back(*std::move(info));
  }
  return contents;
}

}  // namespace fulcrum

// Tensors of a GGUF file: sizes, places without holes, and the Q2_0 block size by byte extent.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/gguf.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

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

// A tensor whose own words are checked, before its neighbours are known.
struct Placed {
  TensorInfo info;
  uint64_t offset = 0;  // in the data section
  // The sizes it can have, by block for Q2_0. None: any.
  std::vector<std::pair<int, uint64_t>> sizes;
};

// Nothing where it or a dimension, in the 8 bytes that any type takes at most, overflows.
std::optional<uint64_t> ElementsOf(const GgufTensorRecord& record) {
  constexpr uint64_t kMostBytes = 8;
  uint64_t elements = 1;
  for (const uint64_t dimension : record.dimensions) {
    const std::optional<uint64_t> product = CheckedProduct(elements, dimension);
    if (!product || !CheckedProduct(dimension, kMostBytes)) return std::nullopt;
    elements = *product;
  }
  if (!CheckedProduct(elements, kMostBytes)) return std::nullopt;
  return elements;
}

// Bytes of `elements` weights in blocks, or nothing when rows of `k` do not split into whole
// blocks.
std::optional<uint64_t> BlockedBytes(uint64_t elements, uint64_t k, uint64_t block,
                                     uint64_t block_bytes) {
  if (k % block != 0) return std::nullopt;
  return CheckedProduct(elements / block, block_bytes);
}

// Fills in the sizes, or why they are not known.
void AddSizes(const GgufTensorRecord& record, uint64_t elements, Placed& tensor) {
  const GgufTypeRow* row = FindGgufType(record.type);
  const uint64_t k = record.dimensions.empty() ? 1 : record.dimensions.front();
  const auto add = [&](uint64_t block, uint64_t block_bytes) {
    const auto bytes = BlockedBytes(elements, k, block, block_bytes);
    if (bytes) tensor.sizes.emplace_back(static_cast<int>(block), *bytes);
  };
  std::string undecided;
  if (row == nullptr) {
    undecided = absl::StrFormat("unknown type id %d; its size cannot be checked", record.type);
  } else if (record.type == kGgufQ2_0) {
    for (const int block : {64, 128}) {
      add(static_cast<uint64_t>(block), static_cast<uint64_t>(Q2BlockBytes(block)));
    }
  } else if (row->block != 0) {
    add(row->block, row->block_bytes);
  }
  const bool geometry = row != nullptr && (row->block != 0 || record.type == kGgufQ2_0);
  if (geometry && tensor.sizes.empty()) {
    undecided = absl::StrFormat("rows of %d do not split into whole blocks of %s", k, row->name);
  }
  if (elements == 0) tensor.sizes = {{0, 0}};
  if (tensor.info.undecided.empty()) tensor.info.undecided = undecided;
}

absl::StatusOr<Placed> CheckRecord(const DataSection& data, const GgufTensorRecord& record,
                                   size_t number) {
  const std::string where = absl::StrCat("tensor ", Quoted(record.name));
  Placed tensor{.info = {}, .offset = record.offset, .sizes = {}};
  TensorInfo& info = tensor.info;
  const GgufTypeRow* row = FindGgufType(record.type);
  SetName(record.name, number, info);
  info.type = TypeOf(record.type);
  info.dtype = row == nullptr ? absl::StrCat("type ", record.type) : std::string(row->name);
  info.file = data.file;
  for (const uint64_t dimension : record.dimensions) {
    info.shape.push_back(static_cast<int64_t>(dimension));
  }
  std::reverse(info.shape.begin(), info.shape.end());
  const std::optional<uint64_t> elements = ElementsOf(record);
  if (!elements) {
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
  info.offset = std::min(data.begin + record.offset, data.file->size());
  AddSizes(record, *elements, tensor);
  return tensor;
}

// "blocks of 64 weights take 432 bytes, blocks of 128 take 408"
std::string SizesText(const Placed& tensor) {
  std::string text;
  for (const auto& [block, bytes] : tensor.sizes) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "blocks of ", block,
                    text.empty() ? " weights take " : " take ", bytes,
                    text.empty() ? " bytes" : "");
  }
  return text;
}

// A tensor that fills its extent with none of its sizes: overlapped, cut short, or before a hole.
absl::Status DoesNotFill(const DataSection& data, const Placed& tensor, uint64_t extent,
                         bool last) {
  const TensorInfo& info = tensor.info;
  std::string what =
      absl::StrFormat("tensor %s: %s of %s ", Quoted(info.name), ShapeText(info.shape), info.dtype);
  if (info.type == TensorType::kQ2_0) {
    absl::StrAppend(&what, "matches neither block size: ", SizesText(tensor));
  } else {
    absl::StrAppend(&what, "takes ", tensor.sizes.front().second, " bytes");
  }
  absl::StrAppend(&what, ", the tensor's extent is ", extent, " (alignment ", data.alignment,
                  "), up to ", last ? "the end of the data" : "the next tensor");
  const uint64_t most = tensor.sizes.front().second;  // blocks of 64 take the most
  // Whatever ends the file below that is a piece of something.
  if (extent < most) {
    return last ? CutShort(*data.file, what)
                : Malformed(*data.file, absl::StrCat(what, ": they overlap"));
  }
  return Malformed(*data.file, absl::StrCat(what, last ? ": bytes at the end belong to none"
                                                       : ": there is a hole between them"));
}

// `extent` is the distance to the next tensor or to the end of the data: a tensor fills it, but for
// padding to the alignment.
absl::Status Fill(const DataSection& data, Placed& tensor, uint64_t extent, bool last) {
  TensorInfo& info = tensor.info;
  if (tensor.sizes.empty()) {
    info.bytes = extent;
    if (extent > 0) return absl::OkStatus();
    const std::string what = absl::StrFormat("tensor %s has no bytes before ", Quoted(info.name));
    return last ? CutShort(*data.file, what + "the end of the data")
                : Malformed(*data.file, what + "the next tensor: they overlap");
  }
  std::vector<std::pair<int, uint64_t>> fitting;
  for (const auto& size : tensor.sizes) {
    if (extent == size.second || extent == AlignUp(size.second, data.alignment)) {
      fitting.push_back(size);
    }
  }
  if (fitting.empty()) return DoesNotFill(data, tensor, extent, last);
  info.bytes = fitting.back().second;  // the smaller
  if (info.type != TensorType::kQ2_0) return absl::OkStatus();
  if (fitting.size() == 1) {
    info.q2_block = fitting.front().first;
  } else if (info.undecided.empty()) {
    info.undecided = absl::StrFormat(
        "Q2_0 tensor matches both block sizes: %s, the tensor's extent is %d "
        "(alignment %d)",
        SizesText(tensor), extent, data.alignment);
  }
  return absl::OkStatus();
}

bool TakesNoPlace(const Placed& tensor) {
  return tensor.sizes.size() == 1 && tensor.sizes.front().second == 0;
}

// Tensors one behind the other from the data's first byte to its last. Expects them by offset.
absl::Status FillAll(const DataSection& data, std::vector<Placed>& tensors) {
  Placed* previous = nullptr;
  for (Placed& tensor : tensors) {
    if (TakesNoPlace(tensor)) continue;
    if (previous != nullptr) {
      const uint64_t extent = tensor.offset - previous->offset;
      if (absl::Status s = Fill(data, *previous, extent, false); !s.ok()) return s;
    } else if (tensor.offset != 0) {
      return Malformed(*data.file, absl::StrFormat("tensor %s begins at data byte %d: there is a "
                                                   "hole before the first tensor",
                                                   Quoted(tensor.info.name), tensor.offset));
    }
    previous = &tensor;
  }
  if (previous != nullptr) return Fill(data, *previous, data.bytes - previous->offset, true);
  if (data.bytes == 0) return absl::OkStatus();
  return Malformed(*data.file,
                   absl::StrFormat("%d bytes behind the header belong to no tensor", data.bytes));
}

std::optional<uint64_t> CountOf(const GgufHeader& header, std::string_view key) {
  const auto it = header.counts.find(key);
  if (it == header.counts.end()) return std::nullopt;
  return it->second;
}

// What the header says about the model that the file is of.
void AddClaims(const GgufHeader& header, const WeightFile& file, GgufContents& contents) {
  GgufPart& part = contents.part;
  part.path = file.path();
  part.speaks = CountOf(header, kGgufSplitCount).has_value();
  part.number = CountOf(header, kGgufSplitNo).value_or(0);
  part.count = CountOf(header, kGgufSplitCount).value_or(0);
  part.model_tensors = CountOf(header, kGgufSplitTensors);
  part.tensors = header.tensors.size();
  const std::string key = absl::StrCat(header.architecture, std::string(kGgufBlockCount));
  const std::string draft = absl::StrCat(header.architecture, std::string(kGgufDraftLayers));
  if (const auto layers = CountOf(header, key)) {
    contents.layers = LayerPromise{.layers = *layers,
                                   .optional = CountOf(header, draft).value_or(0),
                                   .source = absl::StrCat(file.path(), ": ", key)};
  }
}

}  // namespace

absl::StatusOr<GgufContents> ParseGguf(const std::shared_ptr<const WeightFile>& file) {
  absl::StatusOr<GgufHeader> header = ReadGgufHeader(*file);
  if (!header.ok()) {
    return absl::Status(header.status().code(),
                        absl::StrCat(file->path(), ": ", header.status().message()));
  }
  DataSection data{.file = file,
                   .begin = AlignUp(header->end, header->alignment),
                   .bytes = 0,
                   .alignment = header->alignment};
  data.bytes = file->size() - std::min(data.begin, file->size());

  GgufContents contents;
  contents.version = header->version;
  contents.alignment = static_cast<uint32_t>(header->alignment);
  contents.architecture = header->architecture;
  AddClaims(*header, *file, contents);
  std::vector<Placed> tensors;
  for (const GgufTensorRecord& record : header->tensors) {
    absl::StatusOr<Placed> tensor = CheckRecord(data, record, tensors.size());
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.offset, a.info.name) < std::tie(b.offset, b.info.name);
  });
  if (data.begin > file->size() && !std::all_of(tensors.begin(), tensors.end(), TakesNoPlace)) {
    return Malformed(*file, absl::StrFormat("data begins at byte %d, the file has %d bytes",
                                            data.begin, file->size()));
  }
  if (absl::Status s = FillAll(data, tensors); !s.ok()) return s;
  for (Placed& tensor : tensors) contents.tensors.push_back(std::move(tensor.info));
  return contents;
}

}  // namespace fulcrum

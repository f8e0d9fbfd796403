// Tensors of a safetensors file: types, extents against shapes, gaps and overlaps.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/weights/safetensors_header.h"

namespace fulcrum {
namespace {

struct DtypeRow {
  std::string_view name;
  int bits;
  TensorType type;
};
// The element types of the format.
constexpr DtypeRow kDtypes[] = {
    {"F8_E4M3", 8, TensorType::kF8E4m3},    {"BF16", 16, TensorType::kBf16},
    {"F16", 16, TensorType::kF16},          {"F32", 32, TensorType::kF32},
    {"BOOL", 8, TensorType::kOther},        {"U8", 8, TensorType::kOther},
    {"I8", 8, TensorType::kOther},          {"U16", 16, TensorType::kOther},
    {"I16", 16, TensorType::kOther},        {"U32", 32, TensorType::kOther},
    {"I32", 32, TensorType::kOther},        {"U64", 64, TensorType::kOther},
    {"I64", 64, TensorType::kOther},        {"F64", 64, TensorType::kOther},
    {"C64", 64, TensorType::kOther},        {"F8_E8M0", 8, TensorType::kOther},
    {"F8_E5M2", 8, TensorType::kOther},     {"F8_E4M3FNUZ", 8, TensorType::kOther},
    {"F8_E5M2FNUZ", 8, TensorType::kOther}, {"F4", 4, TensorType::kOther},
    {"F6_E2M3", 6, TensorType::kOther},     {"F6_E3M2", 6, TensorType::kOther},
};

const DtypeRow* FindDtype(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

absl::Status Malformed(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// A header that is right in itself but speaks of more bytes than there are.
absl::Status CutShort(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what, "; the file is cut short"));
}

// The product in the shape's order, as the reference reader takes it: behind a zero nothing
// overflows.
std::optional<uint64_t> ElementsOf(const std::vector<uint64_t>& shape) {
  std::optional<uint64_t> elements = uint64_t{1};
  for (const uint64_t dimension : shape) {
    elements = CheckedProduct(*elements, dimension);
    if (!elements) break;
  }
  return elements;
}

// Bytes that the shape and type take: the offsets have to hold exactly these. Nothing where the
// type is unknown: then they say themselves.
absl::StatusOr<std::optional<uint64_t>> BytesOf(const SafetensorsEntry& entry,
                                                const DtypeRow* dtype) {
  constexpr uint64_t kMostBits = 64;
  const std::optional<uint64_t> elements = ElementsOf(entry.shape);
  const std::optional<uint64_t> bits =
      elements ? CheckedProduct(*elements, dtype ? static_cast<uint64_t>(dtype->bits) : kMostBits)
               : std::nullopt;
  if (!bits) {
    return absl::InvalidArgumentError(
        "the product of its shape and element size overflows 63 bits");
  }
  if (dtype == nullptr) return std::nullopt;
  if (*bits % 8 != 0) return absl::InvalidArgumentError("does not end on a whole byte");
  return *bits / 8;
}

// Why a tensor of the type is only listed, or empty.
std::string UndecidedType(const std::string& name, const DtypeRow* dtype) {
  // The width of E4M3FN and none of its values.
  const bool another_float =
      absl::StartsWith(name, "F8_E") && name != "F8_E4M3" && name != "F8_E8M0";
  if (another_float) {
    return absl::StrCat("element type ", Quoted(name),
                        ": 8-bit floats are read as F8_E4M3 (E4M3FN) only; convert the tensor");
  }
  return dtype != nullptr ? "" : absl::StrCat("unknown element type ", Quoted(name));
}

// What the entry says of itself, its place apart.
TensorInfo Describe(const SafetensorsEntry& entry, size_t number, const DtypeRow* dtype) {
  TensorInfo info;
  SetName(entry.name, number, info);
  info.type = dtype == nullptr ? TensorType::kOther : dtype->type;
  info.dtype =
      dtype == nullptr && !CheckTensorName(entry.dtype).ok() ? Quoted(entry.dtype) : entry.dtype;
  if (info.undecided.empty()) info.undecided = UndecidedType(entry.dtype, dtype);
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  for (const uint64_t dimension : entry.shape) {
    info.shape.push_back(
        static_cast<int64_t>(std::min(dimension, kMost)));  // beyond: holds nothing
  }
  return info;
}

// Turns one header entry into a TensorInfo whose range is known to be inside the data.
absl::StatusOr<TensorInfo> CheckEntry(const std::shared_ptr<const WeightFile>& file,
                                      const SafetensorsEntry& entry, size_t number,
                                      uint64_t data_begin) {
  const std::string where = absl::StrCat("tensor ", Quoted(entry.name));
  const DtypeRow* dtype = FindDtype(entry.dtype);
  const absl::StatusOr<std::optional<uint64_t>> bytes = BytesOf(entry, dtype);
  if (!bytes.ok()) {
    return Malformed(file->path(), absl::StrCat(where, ": ", bytes.status().message()));
  }
  TensorInfo info = Describe(entry, number, dtype);
  info.file = file;
  const auto [begin, end] = entry.offsets;
  const uint64_t data_bytes = file->size() - data_begin;
  if (begin > end) {
    return Malformed(
        file->path(),
        absl::StrFormat("%s: data_offsets [%d, %d] end before they begin", where, begin, end));
  }
  info.bytes = bytes->value_or(end - begin);
  if (end - begin != info.bytes) {
    return Malformed(
        file->path(),
        absl::StrFormat("%s: shape %s of %s takes %d bytes, data_offsets [%d, %d] hold %d", where,
                        ShapeText(info.shape), info.dtype, info.bytes, begin, end, end - begin));
  }
  if (end > data_bytes) {
    return CutShort(
        file->path(),
        absl::StrFormat("%s: data_offsets [%d, %d] are outside the file's %d data bytes", where,
                        begin, end, data_bytes));
  }
  info.offset = data_begin + begin;
  return info;
}

// The format allows neither overlaps nor holes: either would mean that the offsets are not to be
// believed. Expects the tensors sorted by offset.
absl::Status CheckCoverage(const WeightFile& file, const std::vector<TensorInfo>& tensors,
                           uint64_t data_begin) {
  uint64_t at = data_begin;
  std::string previous = "the header";
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset != at) {
      return Malformed(
          file.path(),
          absl::StrFormat("tensor %s begins at data byte %d, expected %d: it %s %s",
                          Quoted(tensor.name), tensor.offset - data_begin, at - data_begin,
                          tensor.offset < at ? "overlaps" : "leaves a hole after", previous));
    }
    at += tensor.bytes;
    previous = Quoted(tensor.name);
  }
  if (at != file.size()) {
    return Malformed(file.path(), absl::StrFormat("%d bytes after the last tensor belong to none",
                                                  file.size() - at));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsContents> ParseSafetensors(
    const std::shared_ptr<const WeightFile>& file) {
  constexpr uint64_t kLengthBytes = 8;
  if (file->size() < kLengthBytes) {
    return Malformed(file->path(), absl::StrCat("has ", file->size(),
                                                " bytes, too few for a safetensors header length"));
  }
  uint64_t header_bytes = 0;
  absl::Status status = file->Read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (!status.ok()) return status;
  if (header_bytes > kMaxSafetensorsHeader) {
    return Malformed(file->path(),
                     absl::StrFormat("header length %d is above the limit of %d bytes",
                                     header_bytes, kMaxSafetensorsHeader));
  }
  if (header_bytes > file->size() - kLengthBytes) {
    return Malformed(file->path(),
                     absl::StrFormat("header length %d is larger than the file's %d bytes",
                                     header_bytes, file->size()));
  }
  std::string header(header_bytes, '\0');
  status = file->Read(kLengthBytes, std::as_writable_bytes(std::span(header)));
  if (!status.ok()) return status;
  absl::StatusOr<SafetensorsHeader> parsed = ParseSafetensorsHeader(header);
  if (!parsed.ok()) return Malformed(file->path(), std::string(parsed.status().message()));
  header = std::string();  // may be as large as the tensors' list

  SafetensorsContents contents;
  contents.manifest = ManifestOfMetadata(parsed->metadata, file->path());
  const uint64_t data_begin = kLengthBytes + header_bytes;
  std::vector<TensorInfo>& tensors = contents.tensors;
  for (const SafetensorsEntry& entry : parsed->entries) {
    absl::StatusOr<TensorInfo> info = CheckEntry(file, entry, tensors.size(), data_begin);
    if (!info.ok()) return info.status();
    tensors.push_back(*std::move(info));
  }
  // An empty tensor sits before the one that begins where it does.
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  if (absl::Status s = CheckCoverage(*file, tensors, data_begin); !s.ok()) return s;
  return contents;
}

}  // namespace fulcrum

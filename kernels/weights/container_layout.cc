// Headers of safetensors and GGUF files to be written, with the alignment their readers ask for.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/container_layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/strings/str_format.h"
#include "kernels/weights/gguf.h"
#include "kernels/weights/gguf_types.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {
namespace {

constexpr uint64_t kGgufAlignment = 32;

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

template <class T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void PutString(std::string& out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  out.append(text);
}
void PutU32Pair(std::string& out, std::string_view key, uint32_t value) {
  constexpr uint32_t kU32 = 4;
  PutString(out, key);
  Put<uint32_t>(out, kU32);
  Put<uint32_t>(out, value);
}

const GgufTypeRow* FindGgufType(std::string_view name) {
  for (const GgufTypeRow& row : kGgufTypes) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace

ContainerLayout LayoutSafetensors(std::vector<OutputTensor>& tensors) {
  constexpr uint64_t kLengthBytes = 8;
  std::sort(tensors.begin(), tensors.end(), [](const OutputTensor& a, const OutputTensor& b) {
    return std::tie(b.alignment, a.name) < std::tie(a.alignment, b.name);
  });
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  json["__metadata__"]["format"] = "pt";
  uint64_t data = 0;
  for (OutputTensor& tensor : tensors) {
    tensor.offset = data;
    data += tensor.bytes;
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.offset, data}}};
  }
  std::string text = json.dump();
  text.resize(AlignUp(text.size(), kLengthBytes), ' ');
  ContainerLayout layout;
  Put<uint64_t>(layout.header, text.size());
  layout.header += text;
  for (OutputTensor& tensor : tensors) tensor.offset += layout.header.size();
  layout.file_bytes = layout.header.size() + data;
  return layout;
}

absl::StatusOr<ContainerLayout> LayoutGguf(std::vector<OutputTensor>& tensors) {
  ContainerLayout layout;
  std::string& out = layout.header;
  constexpr uint32_t kVersion = 3, kStringValue = 8, kQuantizationVersion = 2;
  constexpr uint64_t kPairs = 3;
  out.append(kGgufMagic);
  Put<uint32_t>(out, kVersion);
  Put<uint64_t>(out, tensors.size());
  Put<uint64_t>(out, kPairs);
  // Tensor names are the source's, so the file makes no claim to an architecture that others know.
  PutString(out, "general.architecture");
  Put<uint32_t>(out, kStringValue);
  PutString(out, "fulcrum");
  PutU32Pair(out, "general.alignment", kGgufAlignment);
  PutU32Pair(out, "general.quantization_version", kQuantizationVersion);
  uint64_t data = 0;
  for (OutputTensor& tensor : tensors) {
    const GgufTypeRow* type = FindGgufType(tensor.dtype);
    if (type == nullptr) {
      return absl::InternalError(absl::StrFormat("no GGUF type is called %s", tensor.dtype));
    }
    if (tensor.name.size() > kMaxGgufName) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor name %s has %d bytes; GGUF readers take at most %d",
                          Quoted(tensor.name), tensor.name.size(), kMaxGgufName));
    }
    PutString(out, tensor.name);
    Put<uint32_t>(out, static_cast<uint32_t>(std::max<size_t>(tensor.shape.size(), 1)));
    for (auto it = tensor.shape.rbegin(); it != tensor.shape.rend(); ++it) {
      Put<uint64_t>(out, static_cast<uint64_t>(*it));
    }
    if (tensor.shape.empty()) Put<uint64_t>(out, 1);
    Put<uint32_t>(out, type->id);
    Put<uint64_t>(out, data);
    tensor.offset = data;
    data += AlignToGguf(tensor.bytes);
  }
  out.resize(AlignUp(out.size(), kGgufAlignment), '\0');
  for (OutputTensor& tensor : tensors) tensor.offset += out.size();
  layout.file_bytes = out.size() + data;
  return layout;
}

uint64_t AlignToGguf(uint64_t bytes) { return AlignUp(bytes, kGgufAlignment); }

std::string_view GgufTypeFor(std::string_view safetensors_dtype) {
  constexpr std::string_view kSame[] = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"};
  const auto* it = std::find(std::begin(kSame), std::end(kSame), safetensors_dtype);
  return it == std::end(kSame) ? std::string_view() : *it;
}

}  // namespace fulcrum

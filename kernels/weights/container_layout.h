// Lays tensors out in a new safetensors or GGUF v3 file: the header's bytes and where each tensor's
// data goes. Filling in the data is the caller's (quantize.cc).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fulcrum {

struct OutputTensor {
  std::string name;
  std::string dtype;           // the container's spelling; for GGUF the name of a gguf_types.h row
  std::vector<int64_t> shape;  // outermost first
  uint64_t bytes = 0;
  uint64_t alignment = 1;  // safetensors: bytes of an element
  uint64_t offset = 0;     // from the start of the file: filled in by the layout
};

struct ContainerLayout {
  std::string header;  // the file's first bytes
  uint64_t file_bytes = 0;
};

// Orders the tensors by alignment, largest first, and fills in their offsets; the header is padded
// with spaces so that every element is aligned in the file.
ContainerLayout LayoutSafetensors(std::vector<OutputTensor>& tensors);

// Of a tensor's name in GGUF: its readers take no more.
inline constexpr size_t kMaxGgufName = 63;

// Keeps the order. INVALID_ARGUMENT for a name longer than kMaxGgufName.
absl::StatusOr<ContainerLayout> LayoutGguf(std::vector<OutputTensor>& tensors);

// Bytes that a GGUF tensor takes with its padding.
uint64_t AlignToGguf(uint64_t bytes);

// The GGUF type that holds a safetensors element type as it is, or empty when there is none.
std::string_view GgufTypeFor(std::string_view safetensors_dtype);

}  // namespace fulcrum

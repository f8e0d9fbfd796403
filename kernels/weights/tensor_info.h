// One tensor of a checkpoint file, as both readers describe it: where its bytes are and what they
// are, nothing about what it is for (tensor_names.h) or how it is served (checkpoint.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/weights/weight_file.h"

namespace fulcrum {

// The element types that something here reads; every other type is kOther and is only listed.
enum class TensorType : uint8_t { kF8E4m3, kBf16, kF16, kF32, kQ2_0, kOther };

struct TensorInfo {
  std::string name;
  TensorType type = TensorType::kOther;
  std::string dtype;           // as the file spells it ("F8_E4M3", "Q4_K")
  std::vector<int64_t> shape;  // outermost first, so a projection is [N, K] in both containers
  uint64_t offset = 0;         // from the start of the file
  uint64_t bytes = 0;          // inside the file: offset + bytes <= file size
  int q2_block = 0;            // kQ2_0: 64 or 128, 0 when the extent does not tell
  std::string undecided;       // why it cannot be read although its type is known; else empty
  std::string refused;         // why the checkpoint cannot be served with it; else empty
  std::shared_ptr<const WeightFile> file;
};

// "[384, 512]"
std::string ShapeText(const std::vector<int64_t>& shape);

// a * b, or nothing when it leaves 63 bits: sizes and offsets of files fit in 63.
std::optional<uint64_t> CheckedProduct(uint64_t a, uint64_t b);

// Names travel into JSON, protocol buffers and terminals: 1..1024 bytes of UTF-8 without control
// characters, else INVALID_ARGUMENT.
absl::Status CheckTensorName(std::string_view name);

// The name made printable and short enough for an error message.
std::string Quoted(std::string_view name);

}  // namespace fulcrum

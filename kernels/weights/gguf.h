// Reads the GGUF container, versions 2 and 3, little-endian. The header is streamed, so nothing is
// allocated because a file merely claims it. Dimensions are stored innermost first ([K, N]) and
// turned around here. Q2_0 is type 42 with either 64 weights in 18 bytes or 128 in 34 bytes: the
// tensor's byte extent tells which, never the id.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/checkpoint_parts.h"
#include "kernels/weights/layer_count.h"
#include "kernels/weights/tensor_info.h"
#include "kernels/weights/weight_file.h"

namespace fulcrum {

inline constexpr std::string_view kGgufMagic = "GGUF";

struct GgufContents {
  uint32_t version = 0;
  uint32_t alignment = 32;
  std::string architecture;            // general.architecture, empty when absent
  GgufPart part;                       // of how many files it is one
  std::optional<LayerPromise> layers;  // block_count of the architecture
  std::vector<TensorInfo> tensors;     // in the order of their bytes
};

// The tensors lie as ggml's reader asks: each at a multiple of the alignment, one behind the other
// without holes, nothing behind the last. That is one rule for all types, since a hole would make
// another type of a Q2_0 tensor. Tensors of no elements take no place. One whose size is not known
// (a type from later, rows that are no whole blocks) is undecided and ends where the next begins.
// Errors name file, tensor or key, expected and found: INVALID_ARGUMENT, or DATA_LOSS where tensors
// end beyond the file.
absl::StatusOr<GgufContents> ParseGguf(const std::shared_ptr<const WeightFile>& file);

// Type ids that are read or written here.
enum GgufTypeId : uint32_t {
  kGgufF32 = 0,
  kGgufF16 = 1,
  kGgufI8 = 24,
  kGgufI16 = 25,
  kGgufI32 = 26,
  kGgufI64 = 27,
  kGgufF64 = 28,
  kGgufBf16 = 30,
  kGgufQ2_0 = 42,
};

}  // namespace fulcrum

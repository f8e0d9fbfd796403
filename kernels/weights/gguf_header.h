// The GGUF header as a stream of checked values: what the format's grammar says, with every length
// and count bounded by the bytes that are left in the file. What the values mean for the tensors'
// places is gguf.cc's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/weight_file.h"

namespace fulcrum {

inline constexpr std::string_view kGgufSplitNo = "split.no";
inline constexpr std::string_view kGgufSplitCount = "split.count";
inline constexpr std::string_view kGgufSplitTensors = "split.tensors.count";
// Behind the architecture's name.
inline constexpr std::string_view kGgufBlockCount = ".block_count";
inline constexpr std::string_view kGgufDraftLayers = ".nextn_predict_layers";

struct GgufTensorRecord {
  std::string name;
  std::vector<uint64_t> dimensions;  // innermost first; any number of them
  uint32_t type = 0;
  uint64_t offset = 0;  // in the data section
};

struct GgufHeader {
  uint32_t version = 0;
  uint64_t end = 0;  // first byte after the header
  uint64_t alignment = 32;
  std::string architecture;
  std::map<std::string, uint64_t, std::less<>> counts;  // values of the keys above
  std::vector<GgufTensorRecord> tensors;                // in the header's order, names unique
};

// Messages do not name the file; the caller does.
absl::StatusOr<GgufHeader> ReadGgufHeader(const WeightFile& file);

}  // namespace fulcrum

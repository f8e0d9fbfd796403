// The GGUF header as a stream of checked values: what the format's grammar says, with every length
// and count bounded by the bytes that are left in the file. What the values mean for the tensors'
// places is gguf.cc's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/weight_file.h"

namespace fulcrum {

struct GgufTensorRecord {
  std::string name;
  std::vector<uint64_t> dimensions;  // innermost first, 1..4
  uint32_t type = 0;
  uint64_t offset = 0;  // in the data section
};

struct GgufHeader {
  uint32_t version = 0;
  uint64_t end = 0;  // first byte after the header
  uint64_t alignment = 32;
  std::string architecture;
  uint64_t split_no = 0, split_count = 0;
  std::vector<GgufTensorRecord> tensors;
};

// Messages do not name the file; the caller does.
absl::StatusOr<GgufHeader> ReadGgufHeader(const WeightFile& file);

}  // namespace fulcrum

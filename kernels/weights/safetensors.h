// Reads the safetensors container: an 8-byte little-endian header length, a JSON header, then the
// tensors' bytes without holes. Everything the header claims is checked against the file before it
// is used. Which tensors belong together (weight and scale grid) is file_source.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/manifest.h"
#include "kernels/weights/tensor_info.h"
#include "kernels/weights/weight_file.h"

namespace fulcrum {

// Longest header that is read.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

struct SafetensorsContents {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  Manifest manifest;                // what __metadata__ says; nothing is applied yet
};

// As strict as the format's reference reader, but for element types: a tensor of one that is not
// known here, or is no 8-bit float of ours (F8_E5M2, FNUZ variants), is undecided. Errors name
// file, tensor, expected and found: INVALID_ARGUMENT for malformed JSON, a duplicate name, offsets
// that disagree with shape and type, overlaps and holes; DATA_LOSS for tensors that end beyond the
// file.
absl::StatusOr<SafetensorsContents> ParseSafetensors(const std::shared_ptr<const WeightFile>& file);

}  // namespace fulcrum

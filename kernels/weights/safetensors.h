// Reads the safetensors container: an 8-byte little-endian header length, a JSON header, then the
// tensors' bytes without holes. Everything the header claims is checked against the file before it
// is used. Which tensors belong together (weight and scale grid) is file_source.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/tensor_info.h"
#include "kernels/weights/weight_file.h"

namespace fulcrum {

// Longest header that is read.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// All tensors in the order of their bytes. Errors (INVALID_ARGUMENT) name file, tensor, expected
// and found: malformed JSON, a duplicate name, an unknown element type, F8_E5M2 or an FNUZ variant,
// offsets that disagree with shape and type, overlaps, holes, or ranges outside the file.
absl::StatusOr<std::vector<TensorInfo>> ParseSafetensors(
    const std::shared_ptr<const WeightFile>& file);

}  // namespace fulcrum

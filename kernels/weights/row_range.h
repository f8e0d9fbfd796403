// The check that every ReadRows begins with: a caller's mistake becomes an error here, never a read
// outside the matrix or the buffer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {

// INVALID_ARGUMENT unless rows [row, row + count) exist and `out_bytes` holds exactly them.
absl::Status CheckRowRange(const WeightSpec& spec, int64_t row, int64_t count, size_t out_bytes);

}  // namespace fulcrum

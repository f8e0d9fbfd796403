// A row (N) and column (K) part of any weight, as a weight of its own: a shard of a larger matrix.
// Slices keep the file's blocks whole, so their bytes and scales are the larger matrix's own.
// An N slice computes the same bits as the whole; a K slice is its own sum (design: numerics).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {

struct SliceRange {
  int64_t row = 0, rows = -1;        // rows -1: to the end
  int64_t column = 0, columns = -1;  // columns -1: to the end
};

// fp8: row and column begin on a multiple of 128 and end on one or at the matrix's end; q2_0:
// columns begin and end on a multiple of the block; bf16: any. INVALID_ARGUMENT says what is off.
absl::StatusOr<std::shared_ptr<const WeightSource>> Slice(
    std::shared_ptr<const WeightSource> source, const SliceRange& range);

}  // namespace fulcrum

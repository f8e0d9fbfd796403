// A pass over all rows of a weight in pieces of a few MiB: memory does not grow with the weight.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {

// Calls visit(first_row, rows, bytes) over all rows in ascending order, until it or a read fails.
template <class Visit>
absl::Status ForEachPiece(const WeightSource& source, Visit visit) {
  constexpr int64_t kPieceBytes = 4 << 20;
  const WeightSpec& spec = source.spec();
  const int64_t row_bytes = spec.row_bytes();
  if (spec.n <= 0 || row_bytes <= 0) return absl::OkStatus();
  const int64_t rows = std::clamp<int64_t>(kPieceBytes / row_bytes, 1, spec.n);
  std::vector<std::byte> buffer(static_cast<size_t>(rows * row_bytes));
  for (int64_t row = 0; row < spec.n; row += rows) {
    const int64_t count = std::min(rows, spec.n - row);
    const std::span<std::byte> piece(buffer.data(), static_cast<size_t>(count * row_bytes));
    if (absl::Status s = source.ReadRows(row, count, piece); !s.ok()) return s;
    if (absl::Status s = visit(row, count, std::span<const std::byte>(piece)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace fulcrum

// One check and its message, shared by every source.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/row_range.h"

#include "absl/strings/str_format.h"

namespace fulcrum {

absl::Status CheckRowRange(const WeightSpec& spec, int64_t row, int64_t count, size_t out_bytes) {
  if (row < 0 || count < 0 || row > spec.n || count > spec.n - row) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: rows [%d, %d + %d) are outside its %d rows", spec.name, row, row, count, spec.n));
  }
  const auto expected = static_cast<size_t>(count * spec.row_bytes());
  if (out_bytes != expected) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d rows take %d bytes, the buffer has %d", spec.name, count, expected, out_bytes));
  }
  return absl::OkStatus();
}

}  // namespace fulcrum

// The rows of a step, then the bytes of a message.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/call_size.h"

#include <limits>
#include <string>

#include "absl/strings/str_format.h"

namespace fulcrum::cli {

absl::Status CheckCallSize(const v1::Limits& limits, v1::Step step, int64_t rows, int64_t k,
                           int64_t element_bytes) {
  const bool prefill = step == v1::STEP_PREFILL;
  const int64_t most_rows = prefill ? limits.max_prefill_rows() : limits.max_decode_rows();
  if (rows < 1) {
    return absl::InvalidArgumentError(absl::StrFormat("rows: expected at least 1, got %d", rows));
  }
  if (most_rows > 0 && rows > most_rows) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rows: the node takes 1..%d a call in step %s (%s, see `fulcrum info`), got %d; %s",
        most_rows, prefill ? "prefill" : "decode",
        prefill ? "its limits.max_prefill_rows" : "fixed", rows,
        prefill ? "send them in several calls"
                : absl::StrFormat("send them in several calls, or with --step prefill up to %d",
                                  limits.max_prefill_rows())));
  }
  if (k < 1) return absl::OkStatus();  // a shard that never loaded: the node says so
  // Protobuf's own bound where the node tells none.
  const int64_t most_bytes =
      limits.max_message_bytes() > 0 ? limits.max_message_bytes() : std::numeric_limits<int>::max();
  const int64_t fit = most_bytes / (k * element_bytes);
  if (rows <= fit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "rows: the node takes messages of up to %d bytes (its limits.max_message_bytes, see `fulcrum "
      "info`), which is %d rows of K = %d values of %d bytes, got %d rows; send them in several "
      "calls",
      most_bytes, fit, k, element_bytes, rows));
}

}  // namespace fulcrum::cli

// A step of the levers as one line of the journal:
//   "2 ", 8 hex digits, a space, a number, a space, a JSON object, a newline
// The number is the bytes of the JSON. The digits are the CRC-32 of the JSON of every record from
// the file's first to this one: a line that was taken out, put in or moved shows at the next one. A
// line of format 1 lacks the "2 ", and its digits are the CRC-32 of its own JSON alone; it is read,
// and no longer written. A line is a whole step, so a step is kept whole or not at all. Reading and
// writing the file is lever_journal.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "scheduler/lever_event.h"

namespace fulcrum {

// The records of a file up to some line, which the next one continues.
struct RecordChain {
  uint32_t checksum = 0;  // CRC-32 of their JSON, of either format
  bool chained = false;   // one is of format 2: from then on all are
};

// With the newline. The step is not empty. `chain` then includes the record.
std::string EncodeStep(const LeverStep& step, RecordChain& chain);
// Without the newline. `chain` then includes the record. DATA_LOSS says what is wrong with the
// line, or with its place in the file; `chain` stays.
absl::StatusOr<LeverStep> DecodeStep(std::string_view line, RecordChain& chain);
// Whether a line that is no record may be what a crash left of one: it begins as one does, pages of
// it may be zeros, and it is no longer than the record that it begins.
bool MayBeCutShort(std::string_view line);

}  // namespace fulcrum

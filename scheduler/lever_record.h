// A step of the levers as one line of the journal:
//   8 hex digits, a space, a number, a space, a JSON object, a newline
// The digits are the CRC-32 of the JSON, the number is its bytes. A line is a whole step, so a step
// is kept whole or not at all. Reading and writing the file is lever_journal.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "scheduler/lever_event.h"

namespace fulcrum {

// With the newline. The step is not empty.
std::string EncodeStep(const LeverStep& step);
// Without the newline. DATA_LOSS says what is wrong with the line.
absl::StatusOr<LeverStep> DecodeStep(std::string_view line);
// Whether a line that is no record may be what a crash left of one: it is no longer than the record
// that it begins.
bool MayBeCutShort(std::string_view line);

}  // namespace fulcrum

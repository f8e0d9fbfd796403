// Any text as a record of the lever journal, as it is and behind a right checksum: refused, or a
// step that comes back the same when it is written again.
// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <string>

#include "absl/strings/str_format.h"
#include "scheduler/lever_record.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)fulcrum::MayBeCutShort(text);
  (void)fulcrum::DecodeStep(text);
  const auto checksum = static_cast<uint32_t>(crc32_z(0, data, size));
  const auto step = fulcrum::DecodeStep(absl::StrFormat("%08x %d %s", checksum, size, text));
  if (!step.ok()) return 0;
  FUZZ_REQUIRE(!step->empty());
  std::string line = fulcrum::EncodeStep(*step);
  FUZZ_REQUIRE(line.back() == '\n');
  line.pop_back();
  FUZZ_REQUIRE(line.find('\n') == std::string::npos);
  const auto again = fulcrum::DecodeStep(line);
  FUZZ_REQUIRE(again.ok() && fulcrum::EncodeStep(*again) == line + "\n");
  return 0;
}

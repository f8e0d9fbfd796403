// Any text as a record of the lever journal, as it is and behind a right checksum of either format:
// refused, or a step that comes back the same when it is written again.
// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <string>

#include "absl/strings/str_format.h"
#include "scheduler/lever_record.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)fulcrum::MayBeCutShort(text);
  fulcrum::RecordChain any;
  (void)fulcrum::DecodeStep(text, any);
  // What came before changes the checksum of a chained record alone.
  constexpr fulcrum::RecordChain kBefore = {.checksum = 12345};
  fulcrum::RecordChain old = kBefore, chained = kBefore;
  const auto own = static_cast<uint32_t>(crc32_z(0, data, size));
  const auto both = static_cast<uint32_t>(crc32_z(kBefore.checksum, data, size));
  const auto step = fulcrum::DecodeStep(absl::StrFormat("%08x %d %s", own, size, text), old);
  const auto same = fulcrum::DecodeStep(absl::StrFormat("2 %08x %d %s", both, size, text), chained);
  FUZZ_REQUIRE(step.ok() == same.ok());
  if (!step.ok()) return 0;
  FUZZ_REQUIRE(!step->empty() && *step == *same && old.checksum == chained.checksum);
  fulcrum::RecordChain written = kBefore;
  std::string line = fulcrum::EncodeStep(*step, written);
  FUZZ_REQUIRE(line.back() == '\n');
  line.pop_back();
  FUZZ_REQUIRE(line.find('\n') == std::string::npos);
  fulcrum::RecordChain read = kBefore, repeated = kBefore;
  const auto again = fulcrum::DecodeStep(line, read);
  FUZZ_REQUIRE(again.ok() && read.checksum == written.checksum);
  FUZZ_REQUIRE(fulcrum::EncodeStep(*again, repeated) == line + "\n");
  return 0;
}

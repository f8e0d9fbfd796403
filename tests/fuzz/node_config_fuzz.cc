// Any text as a configuration file: both the reading and the checking return.
// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "service/config.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = fulcrum::service::ParseConfig(text, "fuzz");
  if (config.ok()) (void)fulcrum::service::CheckConfig(*config).ok();
  return 0;
}

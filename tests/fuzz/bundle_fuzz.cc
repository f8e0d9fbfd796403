// Any bytes as a bundle: refused, or one that is written the same again.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "kernels/numerics/bundle.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using fulcrum::numerics::DecodeBundle;
  const auto bundle = DecodeBundle(std::string(reinterpret_cast<const char*>(data), size));
  if (!bundle.ok()) return 0;
  const std::string bytes = EncodeBundle(*bundle);
  const auto again = DecodeBundle(bytes);
  FUZZ_REQUIRE(again.ok() && EncodeBundle(*again) == bytes);
  return 0;
}

// Any text as the value of any lever: refused and nothing changed, or printed in a form that sets
// the same value again.
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include "kernels/ladder/levers.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto table = fulcrum::LeverTable();
  const fulcrum::LeverInfo& lever = table[data[0] % table.size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const fulcrum::LeverSet before;
  fulcrum::LeverSet after;
  if (!after.Set(lever.name, text).ok()) {
    FUZZ_REQUIRE(after == before);
    return 0;
  }
  fulcrum::LeverSet again;
  FUZZ_REQUIRE(again.Set(lever.name, after.Print(lever.lever)).ok());
  FUZZ_REQUIRE(again == after);
  return 0;
}

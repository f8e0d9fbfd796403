// A fuzz target: a function that must survive any bytes, under libFuzzer (run.sh) or under
// replay.cc, which feeds it the corpus and mutations of it in every test run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Ends the process where both drivers notice: a property that must hold for every input does not.
#define FUZZ_REQUIRE(condition)         \
  do {                                  \
    if (!(condition)) __builtin_trap(); \
  } while (false)

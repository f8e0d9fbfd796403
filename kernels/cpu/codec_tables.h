// Tables from the format's own decoder, built once, for the arms that decode fp8 by look-up.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cpu {

// The two bytes of the BF16 value of codes 0..127 (the sign is the code's own top bit).
struct Fp8ByteTables {
  uint8_t low[128];
  uint8_t high[128];
};
const Fp8ByteTables& Fp8Tables();

const float* Fp8Values();  // F32 of all 256 codes

}  // namespace fulcrum::cpu

// SPDX-License-Identifier: Apache-2.0
// Fills the tables of codec_tables.h; they are immutable afterwards.
#include "kernels/cpu/codec_tables.h"

#include <array>

#include "kernels/formats/fp8_block128.h"

namespace fulcrum::cpu {
namespace {

Fp8ByteTables MakeTables() {
  Fp8ByteTables tables{};
  for (int code = 0; code < 128; ++code) {
    const uint16_t bits = E4m3ToBf16(static_cast<uint8_t>(code));
    tables.low[code] = static_cast<uint8_t>(bits & 0xff);
    tables.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return tables;
}

std::array<float, 256> MakeValues() {
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code)
    values[static_cast<size_t>(code)] = E4m3ToF32(static_cast<uint8_t>(code));
  return values;
}

}  // namespace

const Fp8ByteTables& Fp8Tables() {
  static const Fp8ByteTables tables = MakeTables();
  return tables;
}

const float* Fp8Values() {
  static const std::array<float, 256> values = MakeValues();
  return values.data();
}

}  // namespace fulcrum::cpu

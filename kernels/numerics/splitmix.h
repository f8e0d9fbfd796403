// SplitMix64: well-mixed numbers from a counter, the same on every machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum {

// What the counter goes up by for each number.
inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

// A bijection of 64 bits.
constexpr uint64_t SplitMix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

}  // namespace fulcrum

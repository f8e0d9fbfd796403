// Activations of the q2_0 arms: int8 in chunks of 32 with one F32 scale.
// Rule: amax over the chunk of |x|; d = amax / 127 (F32 division, RNE); if d is 0, all q are 0;
// else q = clamp(round-half-away(x / d), -127, 127), F32 division. The scale stays F32 (FP16 would
// lose it below 1e-4). A chunk with a NaN or infinity has d = NaN and q = 0, so its row's outputs
// are NaN and no other row is touched. K is padded with zeros to whole chunks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace fulcrum {

// x: BF16 bits, length k. q: 32 * ceil(k / 32) values. d: ceil(k / 32) scales.
void QuantizeQ8Row(std::span<const uint16_t> x, std::span<int8_t> q, std::span<float> d);

}  // namespace fulcrum

// GGUF Q2_0 (type 42): blocks of 64 weights in 18 bytes, an FP16 scale d then 16 code bytes, low
// bits first; weight = (code - 1) * d, and code 3 (+2d) is legal though no quantiser writes it. The
// PrismML variant has the same type id with 128 weights in 34 bytes: told apart by byte extent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fulcrum {

// Bytes of one block of `block` (64 or 128) weights.
constexpr int Q2BlockBytes(int block) { return 2 + block / 4; }

// Decodes one row (k a multiple of block) to k floats: (code - 1) * d, exact in F32.
void DecodeQ2Row(std::span<const std::byte> row, int block, std::span<float> out);

// The code (0..3) of weight i of a row, and its block's scale.
int Q2Code(std::span<const std::byte> row, int block, int64_t i);
float Q2Scale(std::span<const std::byte> row, int block, int64_t i);

// d = amax of the block, rounded to FP16 (beyond 65504 to infinity, which loading refuses); code =
// round-half-away(w / amax) + 1 with the unrounded amax, so never 3; amax 0 gives d = 0 and code 1.
// The format's reference quantiser.
void EncodeQ2Row(std::span<const float> w, int block, std::span<std::byte> row);

}  // namespace fulcrum

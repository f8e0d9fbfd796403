// The reference for every numerics class: plain loops in the pinned order of order.h, no SIMD, no
// templates. Shares with the arms only the formats' decoders. One output is a pure function of one
// weight row, its scales and one activation row, so a single output of a full-size product can be
// recomputed alone: that is what the audit does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/types.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::numerics {

// fp8/bf16 row as BF16 bit patterns (exact for both), length K, with the row's block scales (empty
// for bf16). x: BF16 bits, length K.
float ExactDot(std::span<const uint16_t> w, std::span<const float> scales,
               std::span<const uint16_t> x);
float MmaDot(std::span<const uint16_t> w, std::span<const float> scales,
             std::span<const uint16_t> x);
float BlockfoldDot(std::span<const uint16_t> w, std::span<const float> scales,
                   std::span<const uint16_t> x);

// q2_0 row: blocks as in the file, `block` weights each (64 or 128). x: BF16 bits, length K.
float ExactQ2Dot(std::span<const std::byte> row, int block, std::span<const uint16_t> x);

// One output element of class `numerics` (exact, mma or blockfold; mma and blockfold only for fp8
// and bf16): row `n` of the weight against activation row x. Reads the row from the source.
absl::StatusOr<float> ReferenceElement(NumericsClass numerics, const WeightSource& source,
                                       int64_t n, std::span<const uint16_t> x);

// The whole product out[m * n_count + i] for rows [n_begin, n_begin + n_count) of the weight, F32
// before the output rounding. x: BF16 bits [m, K].
absl::Status ReferenceProduct(NumericsClass numerics, const WeightSource& source, int64_t n_begin,
                              int64_t n_count, std::span<const uint16_t> x, int m,
                              std::span<float> out);

// The same product in float64 from the dequantised weights and the BF16 activations: the
// mathematical value the budget is stated against.
absl::Status Float64Product(const WeightSource& source, int64_t n_begin, int64_t n_count,
                            std::span<const uint16_t> x, int m, std::span<double> out);

}  // namespace fulcrum::numerics

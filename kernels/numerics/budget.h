// The only comparison with a tolerance in the product, used by unit tests, GPU checks, `fulcrum
// verify` and the live shadow check alike. The budget (design: numerics) is stated once, here.
//
// The reference is rounded to the output type first. BF16: an element passes when its ordinal
// distance is <= 2, or |difference| <= 8 * 2^-24 * sqrt(K) * rms(reference row); the compared rows
// together have relative RMS <= 1e-3. F32: |difference| <= the same floor, relative RMS <= 1e-5.
// q2_0 against float64 (8-bit activations): per activation row, over the compared columns,
// sqrt(sum e^2) <= 3e-2 * |x| * |W|_F / sqrt(K). w8a8 against exact: relative RMS <= 3e-2.
// Non-finite values must match in kind and position. There is no exemption for sign flips.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/types.h"

namespace fulcrum::numerics {

struct Verdict {
  bool ok = false;
  int64_t elements = 0;
  int64_t over = 0;                        // elements outside the element budget
  int64_t max_ulp = 0;                     // largest ordinal distance in the output type
  double max_abs = 0;                      // largest |difference|
  double relative_rms = 0;                 // over all compared rows
  int64_t worst_row = -1, worst_col = -1;  // of the worst element
  float worst_reference = 0, worst_actual = 0;
  std::string Describe() const;  // one line for logs and tests
};

// reference, actual: [m, n] row-major. `k` is the shard's K. `actual` holds values of output_type
// widened to float.
Verdict CheckBudget(std::span<const double> reference, std::span<const float> actual, int m,
                    int64_t n, int64_t k, DType output_type);

// q2_0 against float64. x_norms[m] = |x| of each activation row; w_frobenius = |W|_F over the n
// compared rows of W.
Verdict CheckQ2Budget(std::span<const double> reference, std::span<const float> actual, int m,
                      int64_t n, int64_t k, std::span<const double> x_norms, double w_frobenius);

// w8a8 against exact: relative RMS only.
Verdict CheckW8A8Budget(std::span<const double> reference, std::span<const float> actual, int m,
                        int64_t n);

// Distance in representable values; +0 and -0 are one. NaN to anything else: INT64_MAX.
int64_t Bf16Distance(uint16_t a, uint16_t b);
int64_t F32Distance(float a, float b);

}  // namespace fulcrum::numerics

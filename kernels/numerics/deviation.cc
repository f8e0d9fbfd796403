// See deviation.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/deviation.h"

#include <algorithm>
#include <cmath>

#include "kernels/formats/bf16.h"
#include "kernels/numerics/budget.h"

namespace fulcrum::numerics {

Deviation Measure(std::span<const double> reference, std::span<const float> actual, int m,
                  DType output_type) {
  Deviation out;
  if (m <= 0) return out;
  const size_t n = reference.size() / static_cast<size_t>(m);
  for (size_t row = 0; row < static_cast<size_t>(m); ++row) {
    const std::span<const double> wanted = reference.subspan(row * n, n);
    double squares = 0, errors = 0;
    for (const double v : wanted) squares += v * v;
    const double rms = std::sqrt(squares / static_cast<double>(n));
    for (size_t col = 0; col < n; ++col) {
      const auto narrow = static_cast<float>(wanted[col]);
      const float want = output_type == DType::kBf16 ? Bf16ToF32(F32ToBf16(narrow)) : narrow;
      const float got = actual[row * n + col];
      if (!std::isfinite(want) || !std::isfinite(got)) continue;
      const double error = std::fabs(static_cast<double>(got) - static_cast<double>(want));
      errors += error * error;
      if (rms > 0) out.worst_element = std::max(out.worst_element, error / rms);
      if (!(std::fabs(wanted[col]) >= rms)) continue;
      out.max_ulp = std::max(out.max_ulp, output_type == DType::kBf16
                                              ? Bf16Distance(F32ToBf16(want), F32ToBf16(got))
                                              : F32Distance(want, got));
    }
    if (squares > 0) out.worst_row = std::max(out.worst_row, std::sqrt(errors / squares));
  }
  return out;
}

}  // namespace fulcrum::numerics

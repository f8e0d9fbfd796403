// How far values are from their reference, as figures to export and plot. Whether that is too far
// is budget.h's to say.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kernels/types.h"

namespace fulcrum::numerics {

struct Deviation {
  // Largest distance in values of the output type, over references of at least their row's RMS:
  // near zero the distance says nothing, 1e-20 for 0 is a billion apart.
  int64_t max_ulp = 0;
  double worst_element = 0;  // largest |difference| over its row's RMS
  double worst_row = 0;      // largest relative RMS of a row
};

// reference, actual: [m, n] row-major; `actual` holds values of output_type widened to float, and
// the reference is rounded to it first. Pairs with a value that is not finite are left out: the
// budget refuses them.
Deviation Measure(std::span<const double> reference, std::span<const float> actual, int m,
                  DType output_type);

}  // namespace fulcrum::numerics

// The alternative to the q2_0 arm: dequantise the weights to F32 once, then a BLAS sgemv a row.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kernels/weights/weight_source.h"

namespace fulcrum::bench {

// Seconds of each of `launches` matrix-vector products over F32 weights of the source's shape,
// rotating over `copies` of them. Empty when the program was built without a BLAS.
std::vector<double> TimeSgemv(const WeightSource& source, int threads, int copies, int launches);

}  // namespace fulcrum::bench

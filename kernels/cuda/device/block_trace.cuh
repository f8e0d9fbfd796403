// Records where and when the thread blocks of a kernel run. A kernel constructs one at its start.
// The class is empty and costs nothing, except for the weight types for which bench/trace_blocks.cu
// specialises it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fulcrum::cuda {

template <class Weights>
struct BlockTrace {};

}  // namespace fulcrum::cuda

// Where and when the thread blocks of a kernel ran, for the benchmark that asks. A kernel makes one
// of these first; it is empty, and nothing in the kernel's code, but for the types of weights for
// which bench/trace_blocks.cu specialises it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fulcrum::cuda {

template <class Weights>
struct BlockTrace {};

}  // namespace fulcrum::cuda

// What this machine can do at best with the same threads: the yardsticks of the arm benchmark.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::bench {

// Best of several passes of all threads reading their part of `bytes` of memory, in bytes a second.
double ReadBandwidth(int threads, int64_t bytes);
// FP32 fused multiply-adds a second of all threads, registers only, widest vectors in use.
double FmaPeak(int threads);

}  // namespace fulcrum::bench

// The tensor-core arms of up to 16 and 32 rows as traced kernels: the arms' own code, which also
// notes where and when each thread block ran.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <string_view>

#include "kernels/ladder/arm.h"

namespace fulcrum::bench {

// Of one thread block. From the start of its first warp to the end of its last: the device's clock
// in nanoseconds, to compare SMs, and the SM's own in cycles, finer, to compare blocks of one SM.
struct BlockRecord {
  unsigned long long begin_ns = ~0ull, begin_cycle = ~0ull;
  unsigned long long end_ns = 0, end_cycle = 0;  // 0: there was no such block
  unsigned sm = 0;
};
inline constexpr int kMostBlocks = 1 << 16;

// Where traced kernels write from now on: device memory of kMostBlocks, by blockIdx.x.
cudaError_t TraceInto(BlockRecord* records);

struct TracedArm {
  std::string_view arm;
  int m;
  cudaError_t (*run)(const ArmArgs& args);
};
std::span<const TracedArm> TracedArms();

}  // namespace fulcrum::bench

// q2_0, class exact, every M in pieces of eight rows. Each thread is a virtual thread of the order.
// A thread block has fewer weight rows where K is so large that every thread has a chunk.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/q2/q2_lane_arm.cuh"

namespace fulcrum::cuda {

absl::Status q2_0_mmvq(const ArmArgs& args) {
  const auto choose = [](const Q2LaneProduct& p, int* of_tile) -> Q2LaneKernel {
    const bool small_k = p.layout.chunks < kQ2Threads;
    *of_tile = small_k ? kQ2Pairs / 2 : kQ2Pairs;
    if (p.m == 1) return small_k ? &Q2ThreadRows<2, 1> : &Q2ThreadRows<1, 1>;
    if (p.m == 2) return small_k ? &Q2ThreadRows<2, 2> : &Q2ThreadRows<1, 2>;
    if (p.m <= 4) return small_k ? &Q2ThreadRows<2, 4> : &Q2ThreadRows<1, 4>;
    return small_k ? &Q2ThreadRows<2, 8> : &Q2ThreadRows<1, 8>;
  };
  return CudaStatus(RunOnLanes(args, choose), "q2_0_mmvq");
}

}  // namespace fulcrum::cuda

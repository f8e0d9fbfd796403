// q2_0, class exact, one to four rows: a warp owns four weight rows and plays all virtual threads.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/q2_lane_arm.cuh"

namespace fulcrum::cuda {

absl::Status q2_0_warp_rows(const ArmArgs& args) {
  const auto choose = [](const Q2LaneProduct& p, int*) -> Q2LaneKernel {
    if (p.m == 1) return &Q2WarpRows<1>;
    if (p.m == 2) return &Q2WarpRows<2>;
    return p.m == 3 ? &Q2WarpRows<3> : &Q2WarpRows<4>;
  };
  return CudaStatus(RunOnLanes(args, choose), "q2_0_warp_rows");
}

}  // namespace fulcrum::cuda

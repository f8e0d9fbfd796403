// fp8, class exact, two to four rows in one pass over the weights.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/exact/exact_arm.cuh"

namespace fulcrum::cuda {

absl::Status w8a16_gemv_batch4(const ArmArgs& args) {
  return CudaStatus(args.m <= 2 ? RunExactFp8<2>(args) : RunExactFp8<4>(args), "w8a16_gemv_batch4");
}

}  // namespace fulcrum::cuda

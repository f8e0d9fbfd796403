// fp8, class exact, five to 32 rows in one pass over the weights.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/exact/exact_arm.cuh"

namespace fulcrum::cuda {

absl::Status w8a16_gemv_batch16(const ArmArgs& args) {
  // Sixteen columns at a time cost less than twice eight. For 17 to 24 rows eight are better, since
  // sixteen leave a third of the columns empty.
  const bool eight = args.m <= 8 || (args.m > 16 && args.m <= 24);
  return CudaStatus(eight ? RunExactFp8<8>(args) : RunExactFp8<16>(args), "w8a16_gemv_batch16");
}

}  // namespace fulcrum::cuda

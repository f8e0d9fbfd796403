// fp8, class exact, five to 32 rows on one pass over the weights.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/exact_arm.cuh"

namespace fulcrum::cuda {

absl::Status w8a16_gemv_batch16(const ArmArgs& args) {
  return CudaStatus(RunExactFp8<8>(args), "w8a16_gemv_batch16");
}

}  // namespace fulcrum::cuda

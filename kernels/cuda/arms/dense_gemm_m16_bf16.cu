// bf16, class mma, 1 to 32 rows in one pass over the weights.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/mma/one_pass_arm.cuh"

namespace fulcrum::cuda {

absl::Status dense_gemm_m16_bf16(const ArmArgs& args) {
  return CudaStatus(RunOnePass<Bf16Quarter>(args, &RunMma<Bf16Fragment, 1, 32>),
                    "dense_gemm_m16_bf16");
}

}  // namespace fulcrum::cuda

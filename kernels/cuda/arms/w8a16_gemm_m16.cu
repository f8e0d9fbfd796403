// fp8, class mma, up to 16 rows, 32 weight rows a warp.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/mma/mma_arm.cuh"

namespace fulcrum::cuda {

absl::Status w8a16_gemm_m16(const ArmArgs& args) {
  return CudaStatus(RunMmaFp8<2, 16>(args), "w8a16_gemm_m16");
}

}  // namespace fulcrum::cuda

// fp8, class exact, one row. Two tiles a warp where there are enough of them to fill the device.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/exact_arm.cuh"

namespace fulcrum::cuda {

absl::Status w8a16_gemv(const ArmArgs& args) {
  return CudaStatus(RunExactFp8<1>(args), "w8a16_gemv");
}

}  // namespace fulcrum::cuda

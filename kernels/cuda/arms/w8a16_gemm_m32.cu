// fp8, class mma, 1 to 32 rows in one pass over the weights.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/arms.h"
#include "kernels/cuda/mma/one_pass_arm.cuh"

namespace fulcrum::cuda {

absl::Status w8a16_gemm_m32(const ArmArgs& args) {
  const auto has_nan = [](const ResidentWeight* weight) {
    return static_cast<const CudaWeight*>(weight)->has_nan();
  };
  const bool nan =
      has_nan(args.weight) || std::ranges::any_of(args.fused, has_nan, &FusedWeight::weight);
  return CudaStatus(nan ? RunOnePass<Fp8Quarter<true>>(args, &RunMmaFp8<1, 32>)
                        : RunOnePass<Fp8Quarter<false>>(args, &RunMmaFp8<1, 32>),
                    "w8a16_gemm_m32");
}

}  // namespace fulcrum::cuda

// bf16, class exact, every M.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/exact/exact_gemm.cuh"
#include "kernels/cuda/exact/exact_launch.cuh"

namespace fulcrum::cuda {

absl::Status dense_gemv_bf16(const ArmArgs& args) {
  const GemmParams p = MakeGemmParams(args);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const auto run = [&] {
    if (args.m == 1) return LaunchExactGemm<Bf16Fragment, 1, 1>(p, context.stream);
    if (args.m <= 4) return LaunchExactRanges<Bf16Steps<1>, 4>(p, context);
    return LaunchExactRanges<Bf16Steps<1>, 8>(p, context);
  };
  return CudaStatus(run(), "dense_gemv_bf16");
}

}  // namespace fulcrum::cuda

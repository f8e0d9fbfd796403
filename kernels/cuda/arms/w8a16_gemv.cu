// fp8, class exact, one row. Plain loads (exact_gemm.cuh) where two tiles a warp fill the device,
// else ranges (exact_range_gemm.cuh).
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/exact/exact_gemm.cuh"
#include "kernels/cuda/exact/exact_launch.cuh"

namespace fulcrum::cuda {

absl::Status w8a16_gemv(const ArmArgs& args) {
  const GemmParams p = MakeGemmParams(args);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const auto run = [&] {
    if (static_cast<const CudaWeight*>(args.weight)->has_nan()) {
      return LaunchRanges<Fp8Steps<true, 1>, 2, 1>(p, context);
    }
    return p.tiles >= 4 * context.sm_count
               ? LaunchExactGemm<Fp8Fragment<false>, 2, 1>(p, context.stream)
               : LaunchRanges<Fp8Steps<false, 2>, 2, 1>(p, context);
  };
  return CudaStatus(run(), "w8a16_gemv");
}

}  // namespace fulcrum::cuda

// fp8, class mma, 1 to 32 rows in one pass over the weights.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/mma_arm.cuh"
#include "kernels/cuda/wgmma_product.cuh"

namespace fulcrum::cuda {
namespace {

template <bool kNan>
cudaError_t RunWgmma(const Product& p, const CudaContext& context) {
  if (p.m <= 8) return LaunchWgmma<kNan, 1>(p, context);
  if (p.m <= 16) return LaunchWgmma<kNan, 2>(p, context);
  return LaunchWgmma<kNan, 4>(p, context);
}

}  // namespace

absl::Status w8a16_gemm_m32(const ArmArgs& args) {
  const Product p = MakeProduct(args);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  if (!WgmmaServes(p, context)) return CudaStatus(RunMmaFp8<1, 32>(args), "w8a16_gemm_m32");
  const bool nan = static_cast<const CudaWeight*>(args.weight)->has_nan();
  return CudaStatus(nan ? RunWgmma<true>(p, context) : RunWgmma<false>(p, context),
                    "w8a16_gemm_m32");
}

}  // namespace fulcrum::cuda

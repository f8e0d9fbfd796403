// fp8, class mma, prefill of any number of rows. Up to 32 rows run on the decode arm.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/mma/mma_arm.cuh"
#include "kernels/cuda/mma/sm90_prefill_gemm.cuh"

namespace fulcrum::cuda {

absl::Status w8a16_gemm_tiled(const ArmArgs& args) {
  if (args.m <= kMaxDecodeRows) return w8a16_gemm_m32(args);
  const GemmParams p = MakeGemmParams(args);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const auto run = [&] {
    if (!PrefillGemmServes(context))
      return InPieces(args,
                      [](const ArmArgs& piece) { return RunMmaFp8<1, kMaxDecodeRows>(piece); });
    if (static_cast<const CudaWeight*>(args.weight)->has_nan()) {
      return LaunchPrefillGemm<Fp8Operand<true>, 128>(p, context);
    }
    return p.m <= 64 ? LaunchPrefillGemm<Fp8Operand<false>, 64>(p, context)
                     : LaunchPrefillGemm<Fp8Operand<false>, 128>(p, context);
  };
  return CudaStatus(run(), "w8a16_gemm_tiled");
}

}  // namespace fulcrum::cuda

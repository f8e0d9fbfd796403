// bf16, class mma, prefill of any number of rows. Up to 32 rows run on the decode arm.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/mma/mma_arm.cuh"
#include "kernels/cuda/mma/sm90_prefill_gemm.cuh"

namespace fulcrum::cuda {

absl::Status dense_gemm_tiled_bf16(const ArmArgs& args) {
  if (args.m <= kMaxDecodeRows) return dense_gemm_m16_bf16(args);
  const GemmParams p = MakeGemmParams(args);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const auto run = [&] {
    if (!PrefillGemmServes(context))
      return InPieces(args, [](const ArmArgs& piece) {
        return RunMma<Bf16Fragment, 1, kMaxDecodeRows>(piece);
      });
    return p.m <= 64 ? LaunchPrefillGemm<Bf16Operand, 64>(p, context)
                     : LaunchPrefillGemm<Bf16Operand, 128>(p, context);
  };
  return CudaStatus(run(), "dense_gemm_tiled_bf16");
}

}  // namespace fulcrum::cuda

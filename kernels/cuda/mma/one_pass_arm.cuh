// Selects the kernel that serves a launch of up to 32 rows in one pass over the weights. The choice
// cannot change a bit of the result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "kernels/cuda/mma/mma_arm.cuh"
#include "kernels/cuda/mma/sm90_small_gemm.cuh"
#include "kernels/cuda/mma/sm90_stream_gemm.cuh"

namespace fulcrum::cuda {

template <class Quarter, int kTiles>
cudaError_t LaunchOnePass(const GemmParams& p, std::span<const GemmTarget> targets,
                          const CudaContext& context, bool* serves) {
  if (const cudaError_t error = LaunchSmallGemm<Quarter, kTiles>(p, targets, context, serves);
      *serves || error != cudaSuccess) {
    return error;
  }
  return LaunchStreamGemm<Quarter, kTiles>(p, targets, context, serves);
}

// One launch for the weight and those fused with it. Where no kernel serves them, `otherwise` runs
// each alone.
template <class Quarter>
cudaError_t RunOnePass(const ArmArgs& args, cudaError_t (*otherwise)(const ArmArgs&)) {
  const GemmParams p = MakeGemmParams(args);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const auto launch = p.m <= 8    ? &LaunchOnePass<Quarter, 1>
                      : p.m <= 16 ? &LaunchOnePass<Quarter, 2>
                                  : &LaunchOnePass<Quarter, 4>;
  ArmArgs part = args;
  std::span<const FusedWeight> rest = args.fused;
  while (true) {
    std::array<GemmTarget, kMaxGemmTargets> targets;
    const size_t count = std::min(rest.size(), targets.size() - 1);
    bool serves = false;
    if (const cudaError_t error =
            launch(p, GemmTargetsOf(part, rest.first(count), targets), context, &serves);
        error != cudaSuccess) {
      return error;
    }
    if (serves) {
      rest = rest.subspan(count);
    } else if (const cudaError_t error = otherwise(part); error != cudaSuccess) {
      return error;
    }
    if (rest.empty()) return cudaSuccess;
    part.weight = rest.front().weight;
    part.output = rest.front().output;
    part.output_pitch = rest.front().output_pitch;
    rest = rest.subspan(1);
  }
}

}  // namespace fulcrum::cuda

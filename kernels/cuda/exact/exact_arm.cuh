// How the exact fp8 arms of several rows select a kernel instance.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/exact/exact_launch.cuh"

namespace fulcrum::cuda {

template <int kColumns>
cudaError_t RunExactFp8(const ArmArgs& args) {
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const GemmParams p = MakeGemmParams(args);
  if (static_cast<const CudaWeight*>(args.weight)->has_nan()) {
    return LaunchExactRanges<Fp8Steps<true, 1>, kColumns>(p, context);
  }
  // Two steps at a time need fewer loads, but for sixteen columns more registers than a thread has.
  constexpr int kSteps = kColumns <= 8 ? 2 : 1;
  return LaunchExactRanges<Fp8Steps<false, kSteps>, kColumns>(p, context);
}

}  // namespace fulcrum::cuda

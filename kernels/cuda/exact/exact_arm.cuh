// How the exact fp8 arms of several rows choose an instance of their kernel.
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
  // Two steps together take fewer loads and, of sixteen columns, more registers than there are.
  constexpr int kSteps = kColumns <= 8 ? 2 : 1;
  return LaunchExactRanges<Fp8Steps<false, kSteps>, kColumns>(p, context);
}

}  // namespace fulcrum::cuda

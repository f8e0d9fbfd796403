// How the exact fp8 arms choose among the instances of one kernel: none of it can change a bit.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/exact_product.cuh"

namespace fulcrum::cuda {

template <int kColumns>
cudaError_t RunExactFp8(const ArmArgs& args) {
  const auto& weight = *static_cast<const CudaWeight*>(args.weight);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const Product p = MakeProduct(args);
  if (weight.has_nan()) return LaunchExact<Fp8Fragment<true>, 1, kColumns>(p, context.stream);
  if constexpr (kColumns <= 4) {
    if (p.tiles >= 4 * context.sm_count) {
      return LaunchExact<Fp8Fragment<false>, 2, kColumns>(p, context.stream);
    }
  }
  return LaunchExact<Fp8Fragment<false>, 1, kColumns>(p, context.stream);
}

}  // namespace fulcrum::cuda

// How the mma arms choose among the instances of one kernel: none of it can change a bit.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/mma_product.cuh"

namespace fulcrum::cuda {

// One pass over the weights for all m <= kMaxRows (16 or 32) columns.
template <class Weights, int kTiles, int kMaxRows>
cudaError_t RunMma(const ArmArgs& args) {
  const Product p = MakeProduct(args);
  const cudaStream_t stream = StreamOf(args);
  if (args.m <= 8) return LaunchMma<Weights, kTiles, 1>(p, stream);
  if constexpr (kMaxRows > 16) {
    if (args.m > 16) return LaunchMma<Weights, kTiles, 4>(p, stream);
  }
  return LaunchMma<Weights, kTiles, 2>(p, stream);
}

template <int kTiles, int kMaxRows>
cudaError_t RunMmaFp8(const ArmArgs& args) {
  return static_cast<const CudaWeight*>(args.weight)->has_nan()
             ? RunMma<Fp8Fragment<true>, 1, kMaxRows>(args)
             : RunMma<Fp8Fragment<false>, kTiles, kMaxRows>(args);
}

}  // namespace fulcrum::cuda

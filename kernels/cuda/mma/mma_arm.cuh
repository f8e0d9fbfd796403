// How the mma arms select a kernel instance. The choice cannot change a bit of the result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/mma/sm80_gemm.cuh"

namespace fulcrum::cuda {

// One pass over the weights for all m <= kMaxRows (16 or 32) columns.
template <class Weights, int kTiles, int kMaxRows>
cudaError_t RunMma(const ArmArgs& args) {
  const GemmParams p = MakeGemmParams(args);
  const cudaStream_t stream = StreamOf(args);
  if (args.m <= 8) return LaunchSm80Gemm<Weights, kTiles, 1>(p, stream);
  if constexpr (kMaxRows > 16) {
    if (args.m > 16) return LaunchSm80Gemm<Weights, kTiles, 4>(p, stream);
  }
  return LaunchSm80Gemm<Weights, kTiles, 2>(p, stream);
}

template <int kTiles, int kMaxRows>
cudaError_t RunMmaFp8(const ArmArgs& args) {
  return static_cast<const CudaWeight*>(args.weight)->has_nan()
             ? RunMma<Fp8Fragment<true>, 1, kMaxRows>(args)
             : RunMma<Fp8Fragment<false>, kTiles, kMaxRows>(args);
}

// Runs any number of rows, kMaxDecodeRows at a time: run(args of a piece) launches the kernel for
// one piece.
template <class Run>
cudaError_t InPieces(const ArmArgs& args, const Run& run) {
  ArmArgs piece = args;
  const int64_t row_bytes = args.output_pitch * static_cast<int64_t>(SizeOf(args.output_type));
  for (int first = 0; first < args.m; first += kMaxDecodeRows) {
    piece.m = std::min(kMaxDecodeRows, args.m - first);
    piece.activations =
        static_cast<const uint16_t*>(args.activations) + first * args.activation_pitch;
    piece.output = static_cast<std::byte*>(args.output) + first * row_bytes;
    if (const cudaError_t error = run(piece); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fulcrum::cuda

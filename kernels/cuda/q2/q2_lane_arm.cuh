// The launch of arms that map virtual threads to lanes: activations are quantised once, then one
// kernel runs for each weight.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/device/kernel_launch.h"
#include "kernels/cuda/q2/q2_lanes.cuh"
#include "kernels/ladder/arm.h"

namespace fulcrum::cuda {

using Q2LaneKernel = void (*)(Q2LaneProduct);

// choose(product, &of_tile) returns the kernel, which has kQ2LaneThreads threads, and sets the
// thread blocks of a tile.
template <class Choose>
cudaError_t RunOnLanes(const ArmArgs& args, const Choose& choose) {
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const Q2Layout& layout = static_cast<const CudaWeight*>(args.weight)->layout().q2;
  if (args.m * Q8LaneRowBytes(layout.chunks) > context.scratch_bytes) {
    return cudaErrorMemoryAllocation;
  }
  const Q8Input x = {.rows = static_cast<const uint16_t*>(args.activations),
                     .pitch = args.activation_pitch,
                     .m = args.m,
                     .chunks = layout.chunks};
  if (const cudaError_t error = QuantiseForLanes(x, context.scratch, context);
      error != cudaSuccess) {
    return error;
  }
  const auto launch = [&](const FusedWeight& target) {
    const auto& weight = *static_cast<const CudaWeight*>(target.weight);
    const Q2LaneProduct p = {.tiles = weight.codes(),
                             .x = context.scratch,
                             .y = target.output,
                             .y_pitch = target.output_pitch,
                             .n = weight.layout().n,
                             .layout = weight.layout().q2,
                             .m = args.m,
                             .y_f32 = args.output_type == DType::kF32};
    int of_tile = 1;
    const Q2LaneKernel kernel = choose(p, &of_tile);
    // The launch before is ours: the quantising kernel or a weight before.
    const KernelGrid grid = {
        .thread_blocks = dim3(static_cast<unsigned>(weight.layout().tiles() * of_tile)),
        .threads = kQ2LaneThreads,
        .shared_bytes = 0,
        .programmatic = context.has_bulk_copies};
    return LaunchKernel(kernel, grid, context.stream, p);
  };
  cudaError_t error = launch({args.weight, args.output, args.output_pitch});
  for (const FusedWeight& other : args.fused) {
    if (error == cudaSuccess) error = launch(other);
  }
  return error;
}

}  // namespace fulcrum::cuda

// The kernel of exact_range_gemm.cuh and its launch: warps of a thread block, tiles of a warp,
// weight rows of a launch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>

#include "kernels/cuda/device/kernel_launch.h"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/exact/exact_range_gemm.cuh"

namespace fulcrum::cuda {

template <class Steps, int kTiles, int kColumns>
__global__ void __launch_bounds__((RangeShape<Steps, kTiles, kColumns>::Warps(kFromSm90) * 32), 1)
    ExactRangeGemmKernel(const __grid_constant__ GemmParams p,
                         const __grid_constant__ RangePlan plan) {
  extern __shared__ __align__(16) std::byte shared[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int range = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  if (range >= plan.ranges) return;
  constexpr int kWarpBytes = RangeShape<Steps, kTiles, kColumns>::kWarpBytes;
  ExactRangeGemm<Steps, kTiles, kColumns>(p, plan, SharedAddress(shared) + warp * kWarpBytes, range)
      .Run();
}

// Warp schedulers of a multiprocessor; each has every fourth warp.
inline constexpr int kSchedulers = 4;

// The largest number of warps a thread block that gives all schedulers equal work. With at least as
// many units as warps the ranges are equal; with fewer, a range is one unit.
inline int BlockWarps(int64_t units, int multiprocessors, int most) {
  for (int warps = most / kSchedulers * kSchedulers; warps > kSchedulers; warps -= kSchedulers) {
    const int64_t share = int64_t{multiprocessors} * kSchedulers;  // of one warp a scheduler
    if (units >= share * (warps / kSchedulers)) return warps;
    const int64_t fullest = (units + share - 1) / share;
    if (units * 20 >= fullest * share * 19) return warps;
  }
  return std::min(most, kSchedulers);
}

// All thread blocks of a launch are resident at once, since they wait for each other.
template <class Steps, int kTiles, int kColumns>
cudaError_t LaunchRanges(const GemmParams& p, const CudaContext& context) {
  using Shape = RangeShape<Steps, kTiles, kColumns>;
  const auto kernel = &ExactRangeGemmKernel<Steps, kTiles, kColumns>;
  const int64_t units =
      int64_t{(p.tiles + kTiles - 1) / kTiles} * p.segments * ((p.m + kColumns - 1) / kColumns);
  const int block_warps = BlockWarps(units, context.sm_count,
                                     std::min(Shape::Warps(context.has_bulk_copies),
                                              context.max_shared_bytes / Shape::kWarpBytes));
  const KernelGrid shape = {.thread_blocks = {},
                            .threads = block_warps * 32,
                            .shared_bytes = block_warps * Shape::kWarpBytes};
  if (const cudaError_t error = AllowShared(kernel, static_cast<size_t>(shape.shared_bytes));
      error != cudaSuccess) {
    return error;
  }
  const int warps = context.sm_count * block_warps;
  RangePlan plan = {};
  plan.column_groups = (p.m + kColumns - 1) / kColumns;
  plan.unit_stages = p.segment_blocks * (4 / Shape::kQuarters);
  plan.carries = reinterpret_cast<uint32_t*>(context.workspace);
  plan.sums = plan.carries + int64_t{warps} * Shape::kSums * 32;
  // One launch covers as many rows as the workspace has room for.
  const int64_t units_a_group = int64_t{plan.column_groups} * p.segments;
  const int64_t words = context.workspace_bytes / 4 - int64_t{warps} * Shape::kSums * 32;
  const auto most =
      static_cast<int>(std::min(words / (units_a_group * Shape::kOutputs * 32),
                                int64_t{INT32_MAX / 2} / (units_a_group * plan.unit_stages)));
  if (most < 1) return cudaErrorMemoryAllocation;
  const int tile_groups = (p.tiles + kTiles - 1) / kTiles;
  for (int first = 0; first < tile_groups; first += most) {
    plan.first_tile = first * kTiles;
    plan.tile_groups = std::min(most, tile_groups - first);
    const int stages = plan.tile_groups * static_cast<int>(units_a_group) * plan.unit_stages;
    plan.range_stages = std::max(plan.unit_stages, (stages + warps - 1) / warps);
    plan.ranges = (stages + plan.range_stages - 1) / plan.range_stages;
    KernelGrid grid = shape;
    grid.thread_blocks = dim3(static_cast<unsigned>(std::min(plan.ranges, context.sm_count)));
    if (const cudaError_t error = LaunchKernel(kernel, grid, context.stream, p, plan);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

// Two tiles a warp where that leaves at least two warps to a scheduler, else one.
template <class Steps, int kColumns>
cudaError_t LaunchExactRanges(const GemmParams& p, const CudaContext& context) {
  const int64_t units = int64_t{p.tiles} / 2 * p.segments * ((p.m + kColumns - 1) / kColumns);
  return units >= int64_t{context.sm_count} * 2 * kSchedulers
             ? LaunchRanges<Steps, 2, kColumns>(p, context)
             : LaunchRanges<Steps, 1, kColumns>(p, context);
}

}  // namespace fulcrum::cuda

// Four threads quantise a chunk of a row.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/grid_dependency.cuh"
#include "kernels/cuda/device/kernel_launch.h"
#include "kernels/cuda/layout/q2_layout.h"
#include "kernels/cuda/q2/q8_chunk.cuh"
#include "kernels/cuda/q2/q8_rows.h"

namespace fulcrum::cuda {
namespace {

constexpr int kThreads = 128;  // few, so that many multiprocessors have chunks

// Makes column blockIdx.y of the output: a row of x, or zeros.
template <bool kLanes>
__global__ void __launch_bounds__(kThreads)
    QuantiseQ8(Q8Input x, int spread, int group_tiles, std::byte* to) {
  LaunchDependentGrids();
  const int part = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int chunk = part / 4, t = part % 4;
  const int column = static_cast<int>(blockIdx.y), row = spread == 2 ? column / 2 : column;
  const bool in_row = chunk < x.chunks;
  // Grids before this one write the rows and may still read the output's old content. Plain loads,
  // since the read-only path may return stale data of a grid that still runs.
  WaitOnDependentGrids();
  uint4 eight = make_uint4(0, 0, 0, 0);
  if (in_row && row < x.m && row * spread == column) {
    eight = *(reinterpret_cast<const uint4*>(x.rows + row * x.pitch + chunk * kQ2ChunkK) + t);
  }
  const Q8Part q = QuantisePart(eight);
  if (!in_row) return;
  if constexpr (kLanes) {
    std::byte* const own = to + row * Q8LaneRowBytes(x.chunks);
    *reinterpret_cast<uint2*>(own + (t / 2 * x.chunks + chunk) * 16 + t % 2 * 8) =
        make_uint2(q.low, q.high);
    if (t == 0) {
      *reinterpret_cast<float2*>(own + x.chunks * 32 + chunk * 8) = make_float2(q.offset, q.scale);
    }
  } else {
    const int tile = column / kQ8ColumnTile, in_tile = column % kQ8ColumnTile;
    const int group = tile / group_tiles;
    const int place = chunk % 2 * (x.chunks / 2) + chunk / 2;
    std::byte* const own = to + group * group_tiles * Q8FragmentTileBytes(x.chunks) +
                           (place * group_tiles + tile - group * group_tiles) * kQ8FragmentBytes;
    reinterpret_cast<uint2*>(own)[4 * in_tile + t] = make_uint2(q.low, q.high);
    if (t == 0) {
      auto* const constants =
          reinterpret_cast<float*>(own + kQ8ConstantsAt) + in_tile / 2 * 4 + in_tile % 2;
      constants[0] = q.offset;
      constants[2] = q.scale;
    }
  }
}

KernelGrid GridOf(const Q8Input& x, int columns, const CudaContext& context) {
  const auto blocks = static_cast<unsigned>((x.chunks * 4 + kThreads - 1) / kThreads);
  return {.thread_blocks = dim3(blocks, static_cast<unsigned>(columns)),
          .threads = kThreads,
          .shared_bytes = 0,
          .programmatic = context.programmatic};
}

}  // namespace

cudaError_t QuantiseForLanes(const Q8Input& x, std::byte* to, const CudaContext& context) {
  return LaunchKernel(&QuantiseQ8<true>, GridOf(x, x.m, context), context.stream, x, 1, 1, to);
}

cudaError_t QuantiseForTensorCores(const Q8Input& x, int spread, const Q8Columns& columns,
                                   std::byte* to, const CudaContext& context) {
  if (context.has_bulk_copies) {  // the next kernel starts early and needs the shared memory
    if (const cudaError_t error = PreferShared(&QuantiseQ8<false>); error != cudaSuccess) {
      return error;
    }
  }
  return LaunchKernel(&QuantiseQ8<false>,
                      GridOf(x, columns.groups * columns.tiles * kQ8ColumnTile, context),
                      context.stream, x, spread, columns.tiles, to);
}

}  // namespace fulcrum::cuda

// See copies.h. Sixteen bytes a load, several loads in flight a thread: a read over the bus takes
// about a microsecond, however short.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/device/clock.cuh"
#include "kernels/cuda/device/grid_dependency.cuh"
#include "kernels/cuda/device/kernel_launch.h"
#include "kernels/cuda/runtime/copies.h"

namespace fulcrum::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTogether = 4;  // loads in flight a thread
// More blocks are not faster at any size from 4 KiB to 2 MiB (H200), and each takes room on a
// multiprocessor from the kernel that still runs.
constexpr int kMaxBlocksIn = 32, kMaxBlocksOut = 64;
static_assert(kMaxBlocksOut * kMaxCopyParts <= kMaxDoneFlags);

int Blocks(int64_t pieces, int most) {
  constexpr int64_t kAtOnce = int64_t{kThreads} * kTogether;
  return static_cast<int>(std::clamp<int64_t>((pieces + kAtOnce - 1) / kAtOnce, 1, most));
}

// Eight elements of the padded row. Host memory is never taken from a cache: it changes between
// launches.
template <bool kWhole>
__device__ __forceinline__ uint4 Piece(const InCopy& c, int row, int k) {
  const uint16_t* const from = c.from + int64_t{row} * c.k + k;
  if constexpr (kWhole) {
    return k < c.k ? __ldcv(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
  } else {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = k + 2 * i < c.k ? __ldcv(from + 2 * i) : 0;
      const uint32_t high = k + 2 * i + 1 < c.k ? __ldcv(from + 2 * i + 1) : 0;
      words[i] = low | high << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// kWhole: K is a multiple of 8, so rows begin at whole pieces.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads) CopyInKernel(InCopy c) {
  LaunchDependentGrids();
  if (blockIdx.x == 0 && threadIdx.x == 0) c.stamps->in_begin = GlobalTimer();
  const int row_pieces = c.pitch / 8;
  const int pieces = c.rows * row_pieces;
  const int stride = static_cast<int>(gridDim.x) * kThreads;
  for (int first = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
       first < pieces; first += kTogether * stride) {
    uint4 v[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * stride;
      if (at < pieces) v[i] = Piece<kWhole>(c, at / row_pieces, at % row_pieces * 8);
    }
    // No wait before the stores: kernels that still run belong to other slots and use other
    // buffers.
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * stride;
      if (at < pieces) reinterpret_cast<uint4*>(c.to)[at] = v[i];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(&c.stamps->in_end, GlobalTimer());
  // A grid that waits for this one must also wait for those before it.
  WaitOnDependentGrids();
  if (threadIdx.x == 0) atomicMax(&c.stamps->kernel_begin, GlobalTimer());
}

// Copies one part by the thread blocks of one row of the grid.
__device__ __forceinline__ void CopyPart(const OutCopy::Part& part) {
  const auto* const from = reinterpret_cast<const uint4*>(part.from);
  auto* const to = reinterpret_cast<uint4*>(part.to);
  const int pieces = static_cast<int>(part.bytes / 16);
  const int stride = static_cast<int>(gridDim.x) * kThreads;
  const int thread = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  for (int first = thread; first < pieces; first += kTogether * stride) {
    uint4 v[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i * stride < pieces) v[i] = __ldcg(from + first + i * stride);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i * stride < pieces) __stwt(to + first + i * stride, v[i]);
    }
  }
  const int rest = static_cast<int>(part.bytes % 16 / 2);
  if (thread < rest) {
    const int at = pieces * 8 + thread;
    __stwt(reinterpret_cast<uint16_t*>(part.to) + at,
           __ldcg(reinterpret_cast<const uint16_t*>(part.from) + at));
  }
}

__global__ void __launch_bounds__(kThreads) CopyOutKernel(const __grid_constant__ OutCopy c) {
  LaunchDependentGrids();
  WaitOnDependentGrids();
  const unsigned long long begin = GlobalTimer();
  if (blockIdx.y < static_cast<unsigned>(c.count)) CopyPart(c.parts[blockIdx.y]);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    const auto* const stamps = c.from;
    __stwt(&c.to->in_begin, __ldcg(&stamps->in_begin));
    __stwt(&c.to->in_end, __ldcg(&stamps->in_end));
    __stwt(&c.to->kernel_begin, __ldcg(&stamps->kernel_begin));
    __stwt(&c.to->kernel_end, begin);
  }
  __threadfence_system();  // stores of this block and of the grids before become visible before the
                           // flag
  *static_cast<volatile unsigned long long*>(c.done + blockIdx.y * gridDim.x + blockIdx.x) =
      GlobalTimer();
}

dim3 GridOf(const OutCopy& copy) {
  int64_t most = 0;
  for (int i = 0; i < copy.count; ++i) most = std::max(most, copy.parts[i].bytes);
  return dim3(static_cast<unsigned>(Blocks(most / 16, kMaxBlocksOut)),
              static_cast<unsigned>(std::max(1, copy.count)));
}

}  // namespace

int DoneFlags(const OutCopy& copy) {
  const dim3 grid = GridOf(copy);
  return static_cast<int>(grid.x * grid.y);
}

cudaError_t EnqueueCopyIn(const InCopy& copy, bool programmatic, cudaStream_t stream) {
  const KernelGrid grid = {
      .thread_blocks =
          dim3(static_cast<unsigned>(Blocks(int64_t{copy.rows} * (copy.pitch / 8), kMaxBlocksIn))),
      .threads = kThreads,
      .programmatic = programmatic};
  return LaunchKernel(copy.k % 8 == 0 ? &CopyInKernel<true> : &CopyInKernel<false>, grid, stream,
                      copy);
}

cudaError_t EnqueueCopyOut(const OutCopy& copy, bool programmatic, cudaStream_t stream) {
  const KernelGrid grid = {
      .thread_blocks = GridOf(copy), .threads = kThreads, .programmatic = programmatic};
  return LaunchKernel(&CopyOutKernel, grid, stream, copy);
}

cudaError_t LoadCopies() {
  cudaFuncAttributes unused;  // asking for them loads the kernel
  for (const auto kernel : {&CopyInKernel<true>, &CopyInKernel<false>}) {
    if (const cudaError_t error = cudaFuncGetAttributes(&unused, kernel); error != cudaSuccess) {
      return error;
    }
  }
  return cudaFuncGetAttributes(&unused, &CopyOutKernel);
}

}  // namespace fulcrum::cuda

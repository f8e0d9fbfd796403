// Class exact for fp8 and bf16 (order.h), several rows: multiply-adds are the time. A warp owns a
// panel of 64 weight rows and up to eight columns, eight rows a thread, so what is read and made
// ready of one activation serves 32 multiply-adds, and of one weight as many as there are columns.
// A thread block is the two panels that share their scales, times the groups of columns: its
// activations, F32 and scaled, lie in shared memory a block of K at a time.
//
// A thread block does one K segment, or all of them where there are rows enough. Segments that meet
// leave their sums in the scratch; the last to come, by a ticket, adds them in ascending order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/exact_step.cuh"
#include "kernels/cuda/product.cuh"

namespace fulcrum::cuda {

inline constexpr int kExactPanels = kScaleRows / kPanelRows;  // a thread block
inline constexpr int kMaxColumnGroups = 4;

struct ExactPlan {
  bool split;         // a segment a thread block
  float* sums;        // [row group][segment][column][128 rows]
  uint32_t* tickets;  // a row group each, all ones between launches
};

// Registers of a thread: for fp8 three thread blocks of 128 threads find room on a multiprocessor.
template <class Quarter>
inline constexpr int kExactRegisters = Quarter::kScaled ? 168 : 224;

template <class Quarter, int kColumns>
__global__ void __maxnreg__(kExactRegisters<Quarter>) ExactPanelProduct(Product p, ExactPlan plan) {
  // [two blocks in turn][step][column][lane of the order][its four k], then [column][128 rows].
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int groups = static_cast<int>(blockDim.x) / 32 / kExactPanels, columns = groups * kColumns;
  const int panel = warp % kExactPanels, group = warp / kExactPanels;
  const int parts = plan.split ? p.segments : 1;
  const int row_group = static_cast<int>(blockIdx.x) / parts;
  const int part = static_cast<int>(blockIdx.x) % parts;
  float* const total = shared + 2 * kBlockK * columns;
  const float* const scales = Quarter::kScaled ? p.scales + int64_t{row_group} * p.blocks : nullptr;
  const int panels = (p.tiles + kPanelTiles - 1) / kPanelTiles;
  const std::byte* const codes =
      p.codes + int64_t{min(row_group * kExactPanels + panel, panels - 1)} * p.blocks *
                    kPanelTiles * Quarter::kBlockBytes;

  // A thread brings 16 k of one column in.
  const auto stage = [&](int block) {
    for (int i = threadIdx.x; i < columns * 8; i += blockDim.x) {
      const int column = i % columns, step = i / columns;
      const uint4* const from = reinterpret_cast<const uint4*>(
          p.x + min(column, p.m - 1) * p.x_pitch + block * kBlockK + step * kStepK);
      const uint4 low = __ldg(from), high = __ldg(from + 1);
      const uint32_t pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      const float scale = Quarter::kScaled ? __ldg(scales + block) : 1.0f;
      float4* const to = reinterpret_cast<float4*>(shared + block % 2 * kBlockK * columns) +
                         (step * columns + column) * 4;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        to[t] = Scaled<Quarter::kScaled>(pairs[t], pairs[t + 4], scale);
      }
    }
  };

  const int first_segment = plan.split ? part : 0;
  const int end_segment = plan.split ? part + 1 : p.segments;
  for (int segment = first_segment; segment < end_segment; ++segment) {
    const int first = segment * p.segment_blocks, end = min(first + p.segment_blocks, p.blocks);
    float acc[kPanelTiles][2][kColumns] = {};
    Quarter next[kPanelTiles];
    const auto load = [&](int quarter) {  // counted from the panel's first
      const std::byte* const block =
          codes + int64_t{quarter / 4} * kPanelTiles * Quarter::kBlockBytes;
#pragma unroll
      for (int i = 0; i < kPanelTiles; ++i) {
        next[i].Load(block + i * Quarter::kBlockBytes, quarter % 4, lane);
      }
    };
    load(first * 4);
    __syncthreads();  // the segment before has read its last block
    stage(first);
    for (int block = first; block < end; ++block) {
      __syncthreads();
      if (block + 1 < end) stage(block + 1);
      const float4* const x =
          reinterpret_cast<const float4*>(shared + block % 2 * kBlockK * columns) +
          group * kColumns * 4 + lane % 4;
#pragma unroll 1
      for (int quarter = 0; quarter < 4; ++quarter) {
        Quarter now[kPanelTiles];
#pragma unroll
        for (int i = 0; i < kPanelTiles; ++i) now[i] = next[i];
        load(min(block * 4 + quarter + 1, end * 4 - 1));
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          StepPairs pairs[kPanelTiles];
#pragma unroll
          for (int i = 0; i < kPanelTiles; ++i) pairs[i] = now[i].Step(step);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            const float4 xs = x[((quarter * 2 + step) * columns + c) * 4];
#pragma unroll
            for (int i = 0; i < kPanelTiles; ++i) {
              ExactStep(pairs[i], xs, acc[i][0][c], acc[i][1][c]);
            }
          }
        }
      }
    }
    // Each of the four threads keeps its share; segments ascending.
#pragma unroll
    for (int i = 0; i < kPanelTiles; ++i) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const float sum = AddLanes(acc[i][row][c]);
          if (lane % 4 != c % 4) continue;
          float& to = total[(group * kColumns + c) * kScaleRows + panel * kPanelRows +
                            i * kTileRows + row * 8 + lane / 4];
          to = segment == first_segment ? sum : __fadd_rn(to, sum);
        }
      }
    }
  }
  __syncthreads();

  const int outputs = columns * kScaleRows;
  const int64_t first_row = int64_t{row_group} * kScaleRows;
  if (plan.split && p.segments > 1) {
    float* const meeting = plan.sums + int64_t{row_group} * p.segments * outputs;
    for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
      __stcg(meeting + part * outputs + i, total[i]);
    }
    __threadfence();
    __syncthreads();
    __shared__ bool last;
    if (threadIdx.x == 0) {
      last = atomicAdd(plan.tickets + row_group, 1u) + 2u == static_cast<uint32_t>(p.segments);
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
      const int64_t n = first_row + i % kScaleRows;
      const int m = i / kScaleRows;
      if (n >= p.n || m >= p.m) continue;
      float sum = __ldcg(meeting + i);
      for (int s = 1; s < p.segments; ++s) sum = __fadd_rn(sum, __ldcg(meeting + s * outputs + i));
      StoreResult(p, m, n, sum);
    }
    if (threadIdx.x == 0) plan.tickets[row_group] = ~0u;
    return;
  }
  for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
    const int64_t n = first_row + i % kScaleRows;
    const int m = i / kScaleRows;
    if (n < p.n && m < p.m) StoreResult(p, m, n, total[i]);
  }
}

// m <= 8 kMaxColumnGroups.
template <class Quarter, int kColumns>
cudaError_t LaunchExactPanels(const Product& p, const CudaContext& context) {
  const auto kernel = &ExactPanelProduct<Quarter, kColumns>;
  const int groups = (p.m + kColumns - 1) / kColumns, columns = groups * kColumns;
  const int row_groups = (p.tiles * kTileRows + kScaleRows - 1) / kScaleRows;
  // Sums of all row groups, then their tickets; where they do not fit there are rows enough.
  const int64_t sums = int64_t{row_groups} * p.segments * columns * kScaleRows;
  ExactPlan plan = {};
  plan.split = row_groups < 8 * context.sm_count && sums * 4 <= context.scratch_bytes &&
               row_groups * 4 <= context.workspace_bytes;
  plan.sums = reinterpret_cast<float*>(context.scratch);
  plan.tickets = reinterpret_cast<uint32_t*>(context.workspace);
  const int shared = (2 * kBlockK + kScaleRows) * columns * 4;
  if (const cudaError_t error = AllowShared(kernel, shared); error != cudaSuccess) {
    return error;
  }
  kernel<<<row_groups*(plan.split ? p.segments : 1), groups * kExactPanels * 32, shared,
           context.stream>>>(p, plan);
  return cudaGetLastError();
}

}  // namespace fulcrum::cuda

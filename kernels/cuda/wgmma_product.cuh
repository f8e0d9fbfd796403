// Class mma for fp8 on sm_90a (order.h), at the speed of the read: one pass over the weights for 1
// to 32 columns.
//
// A thread block holds one K segment's activations in shared memory, as the tensor core wants them,
// and has a few warpgroups; a warpgroup owns panels of 64 rows in turn and streams their part of
// the segment through a ring of its own, a block of 128 K a stage, one bulk copy each. Weights
// become BF16 in registers and are the A operand, so the 64 rows serve any number of columns; the
// inner sum of a block is eight instructions on a fresh accumulator, folded in registers: no
// reduction between warps. Segments of one panel meet in the workspace: everyone leaves its sums
// there, each sum is finished by one thread block, which waits for the words themselves (all of
// them differ from what a clean workspace holds) and cleans them. So all thread blocks must run at
// once: there are at most as many as multiprocessors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fulcrum::cuda {

inline constexpr int kStageBytes = kPanelTiles * kFp8BlockBytes;
inline constexpr int kWgmmaColumns = 8;

// How a warpgroup works. kPairs: two blocks at a time; the eight instructions of a block wait for
// each other, so two chains of them take little longer than one. kMany: it has more than one panel,
// and finishes each one later. Which is fastest was measured; none changes a bit.
template <int kTiles, bool kPairs, bool kMany>
inline constexpr int kMaxWarpgroups = kTiles == 4 || kPairs || kMany ? 3 : 5;  // by registers

struct WgmmaPlan {
  int groups;       // thread blocks a segment: each has its own panels
  int warpgroups;   // a thread block
  int stages;       // of a warpgroup's ring
  int first_panel;  // of this launch
  int panels;
};

// A place in a ring of stages, and how often it was passed.
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next(int stages) {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Where the sums of (panel of the launch, warp, column tile, segment) meet, a 16-byte word a
// thread.
template <int kTiles>
__device__ __forceinline__ uint4* Meeting(uint4* workspace, const Product& p, int panel, int warp,
                                          int tile, int segment, int lane) {
  return workspace + (((int64_t{panel} * 4 + warp) * kTiles + tile) * p.segments + segment) * 32 +
         lane;
}

// Finishes those of a panel's sums that are this segment's to finish. kTogether: segments whose
// words are asked for together, as many as find registers.
template <int kTogether, int kTiles>
__device__ __forceinline__ void FinishPanel(const Product& p, uint4* workspace,
                                            const float (&own)[kTiles][4], int panel,
                                            int first_panel, int warp, int rank, int lane) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (((panel * 4 + warp) * kTiles + tile) % p.segments != rank) continue;
    float sum[4] = {};
    for (int first = 0; first < p.segments; first += kTogether) {
      uint4 v[kTogether];
      bool arrived = false;
      while (!arrived) {
        arrived = true;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (first + i < p.segments && first + i != rank) {
            v[i] = WorkspaceLoad(Meeting<kTiles>(workspace, p, panel, warp, tile, first + i, lane));
          }
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (first + i < p.segments && first + i != rank) arrived = arrived && Arrived(v[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int segment = first + i;
        if (segment >= p.segments) continue;
        const bool mine = segment == rank;
        sum[0] = __fadd_rn(sum[0], mine ? own[tile][0] : __uint_as_float(v[i].x));
        sum[1] = __fadd_rn(sum[1], mine ? own[tile][1] : __uint_as_float(v[i].y));
        sum[2] = __fadd_rn(sum[2], mine ? own[tile][2] : __uint_as_float(v[i].z));
        sum[3] = __fadd_rn(sum[3], mine ? own[tile][3] : __uint_as_float(v[i].w));
        if (!mine) {
          WorkspaceStore(Meeting<kTiles>(workspace, p, panel, warp, tile, segment, lane),
                         make_uint4(kClean, kClean, kClean, kClean));
        }
      }
    }
    const int64_t row = int64_t{first_panel + panel} * kPanelRows + warp * kTileRows + lane / 4;
    const int column = tile * kWgmmaColumns + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t n = row + e / 2 * 8;
      const int m = column + e % 2;
      if (n < p.n && m < p.m) StoreResult(p, m, n, sum[e]);
    }
  }
}

template <bool kNan, int kTiles, bool kPairs, bool kMany>
__global__ void __launch_bounds__(kMaxWarpgroups<kTiles, kPairs, kMany> * 128, 1)
    WgmmaProduct(Product p, WgmmaPlan plan, uint4* workspace,
                 const __grid_constant__ CUtensorMap activations) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte shared[];
  constexpr int kBlockX = kTiles * kWgmmaColumns * kBlockK * 2;  // bytes of a block's activations
  const int lane = threadIdx.x % 32, thread_warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int warpgroup = thread_warp / 4, warp = thread_warp % 4;
  const int rank = static_cast<int>(blockIdx.x) % p.segments;
  const int group = static_cast<int>(blockIdx.x) / p.segments;
  const int first_block = rank * p.segment_blocks;
  const int blocks = min(p.segment_blocks, p.blocks - first_block);
  const int first = static_cast<int>(int64_t{plan.panels} * group / plan.groups) + warpgroup;
  const int end = static_cast<int>(int64_t{plan.panels} * (group + 1) / plan.groups);
  const int jobs = first < end ? (end - first + plan.warpgroups - 1) / plan.warpgroups : 0;
  const int uses = jobs * blocks;

  const uint32_t x = SharedAddress(shared);
  const uint32_t rings = x + p.segment_blocks * kBlockX;
  const uint32_t barriers = rings + plan.warpgroups * plan.stages * kStageBytes;
  const uint32_t ring = rings + warpgroup * plan.stages * kStageBytes;
  const uint32_t full = barriers + warpgroup * plan.stages * 16, empty = full + plan.stages * 8;
  const uint32_t x_full = barriers + plan.warpgroups * plan.stages * 16;

  const bool producer = warp == 0 && lane == 0;
  const uint64_t policy = ReadOnce();
  int next_panel = first, next_block = 0;
  const auto ask = [&](int stage) {
    BarrierExpect(full + 8 * stage, kStageBytes);
    const int64_t block =
        int64_t{plan.first_panel + next_panel} * p.blocks + first_block + next_block;
    BulkCopy(ring + stage * kStageBytes, p.codes + block * kStageBytes, kStageBytes,
             full + 8 * stage, policy);
    if (++next_block == blocks) {
      next_block = 0;
      next_panel += plan.warpgroups;
    }
  };
  if (producer) {
    for (int i = 0; i < plan.stages; ++i) {
      BarrierInit(full + 8 * i, 1);
      BarrierInit(empty + 8 * i, 4);
    }
    BarriersReady();
  }
  const auto scale_of = [&](int panel) {
    const int64_t row = int64_t{plan.first_panel + panel} * kPanelRows / kScaleRows;
    return lane < blocks ? __ldg(p.scales + row * p.blocks + first_block + lane) : 0.0f;
  };
  float scale = jobs > 0 ? scale_of(first) : 0.0f;
  // Activations before weights: what is asked for first arrives first, and every block needs them.
  if (thread_warp == 1 && lane == 0) {
    for (int i = 0; i < blocks; ++i) BarrierInit(x_full + 8 * i, 1);
    BarriersReady();
    for (int i = 0; i < blocks; ++i) {
      BarrierExpect(x_full + 8 * i, kBlockX);
      for (int half = 0; half < 2; ++half) {
        TensorCopy(x + i * kBlockX + half * (kBlockX / 2), &activations,
                   (first_block + i) * kBlockK + half * (kBlockK / 2), x_full + 8 * i);
      }
    }
  }
  int asked = min(plan.stages, uses);
  if (producer) {
    for (int i = 0; i < asked; ++i) ask(i);
  }
  __syncthreads();

  float outer[kTiles][4] = {}, before[kMany ? kTiles : 1][4];
  float next_scale = 0;
  int block = 0, job = 0;
  const uint32_t descriptor = ((x & 0x3ffff) >> 4) | (1u << 16);
  Ring reading, refilling;

  // The weights of the next block as this warp's A operands.
  const auto read = [&](uint32_t(&a)[32]) {
    BarrierWait(full + 8 * reading.stage, reading.phase);
    Fp8Fragment<kNan> weights;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights.quarter[i].words = SharedLoad(ring + reading.stage * kStageBytes +
                                            warp * kFp8BlockBytes + i * 512 + lane * 16);
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(empty + 8 * reading.stage);
    reading.Next(plan.stages);
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const StepPairs pairs = weights.Step(step);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[4 * step + i] = pairs.pair[i];
    }
  };
  // Registers of an asynchronous instruction must not move while it runs: empty statements pin
  // them, without which the compiler makes the instructions wait for one another.
  const auto pin = [](uint32_t(&a)[32], float(&sums)[kTiles][4]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+r"(a[i])::"memory");
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[t][e])::"memory");
    }
  };
  const auto step_of = [&](float(&sums)[kTiles][4], const uint32_t(&a)[32], int of_block,
                           int step) {
    const uint32_t at = descriptor + static_cast<uint32_t>(of_block * kBlockX) / 16 +
                        static_cast<uint32_t>(step / 4 * (kBlockX / 32) + step % 4 * 2);
    Wgmma<kTiles>(sums, a + 4 * step, at, step > 0);
  };
  const auto fold = [&](const float(&inner)[kTiles][4], int of_block) {
    const float block_scale = __shfl_sync(~0u, scale, of_block);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) outer[t][e] = __fmaf_rn(block_scale, inner[t][e], outer[t][e]);
    }
  };
  const auto refill = [&](int count) {
    if (producer) {
      for (int i = 0; i < count && asked < uses; ++i, ++asked) {
        BarrierWait(empty + 8 * refilling.stage, refilling.phase);
        ask(refilling.stage);
        refilling.Next(plan.stages);
      }
    }
    __syncwarp();
  };

  // The next kBlocks blocks of the panel, side by side.
  const auto multiply = [&]<int kBlocks>(std::integral_constant<int, kBlocks>) {
    uint32_t a[kBlocks][32];
    float inner[kBlocks][kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) read(a[i]);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) BarrierWait(x_full + 8 * (block + i), 0);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) pin(a[i], inner[i]);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) step_of(inner[i], a[i], block + i, step);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    refill(kBlocks);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      pin(a[i], inner[i]);
      fold(inner[i], block + i);
    }
    block += kBlocks;
  };

  while (job < jobs) {
    if (kMany && block == 0 && job + 1 < jobs) {
      next_scale = scale_of(first + (job + 1) * plan.warpgroups);
    }
    if (kPairs && block + 1 < blocks) {
      multiply(std::integral_constant < int, kPairs ? 2 : 1 > ());
    } else {
      multiply(std::integral_constant<int, 1>());
    }
    if (block < blocks) continue;
    block = 0;
    const int panel = first + job * plan.warpgroups;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (((panel * 4 + warp) * kTiles + t) % p.segments == rank) continue;
      WorkspaceStore(Meeting<kTiles>(workspace, p, panel, warp, t, rank, lane),
                     make_uint4(NeverClean(outer[t][0]), NeverClean(outer[t][1]),
                                NeverClean(outer[t][2]), NeverClean(outer[t][3])));
    }
    if constexpr (kMany) {
      // Finished one panel later, when the others have long left their sums.
      if (job > 0) {
        FinishPanel<4>(p, workspace, before, panel - plan.warpgroups, plan.first_panel, warp, rank,
                       lane);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          before[t][e] = outer[t][e];
          outer[t][e] = 0;
        }
      }
      scale = next_scale;
    }
    ++job;
  }
  if (jobs == 0) return;
  const int last = first + (jobs - 1) * plan.warpgroups;
  if constexpr (kMany) {
    FinishPanel<8>(p, workspace, before, last, plan.first_panel, warp, rank, lane);
  } else {
    FinishPanel<8>(p, workspace, outer, last, plan.first_panel, warp, rank, lane);
  }
#endif
}

// False where this kernel cannot serve: another kernel of the class must.
inline bool WgmmaServes(const Product& p, const CudaContext& context) {
  return context.has_wgmma && p.segments <= context.sm_count;
}

template <bool kNan, int kTiles, bool kPairs, bool kMany>
cudaError_t LaunchWgmmaPart(const Product& p, const CudaContext& context, WgmmaPlan plan,
                            int panels_a_group, const CUtensorMap& map) {
  const auto kernel = &WgmmaProduct<kNan, kTiles, kPairs, kMany>;
  plan.warpgroups = std::min(panels_a_group, kMaxWarpgroups<kTiles, kPairs, kMany>);
  // No deeper: what is asked for early queues in front of what is needed now.
  plan.stages = kPairs ? 4 : plan.warpgroups <= 3 ? 3 : 2;
  const int shared = p.segment_blocks * kTiles * kWgmmaColumns * kBlockK * 2 +
                     plan.warpgroups * plan.stages * (kStageBytes + 16) + p.segment_blocks * 8;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
      error != cudaSuccess) {
    return error;
  }
  kernel<<<plan.groups * p.segments, plan.warpgroups * 128, shared, context.stream>>>(
      p, plan, reinterpret_cast<uint4*>(context.workspace), map);
  return cudaGetLastError();
}

template <bool kNan, int kTiles>
cudaError_t LaunchWgmma(const Product& p, const CudaContext& context) {
  CUtensorMap map;
  if (const cudaError_t error = DescribeRows(p.x, p.m, int64_t{p.blocks} * kBlockK, p.x_pitch,
                                             kTiles * kWgmmaColumns, &map);
      error != cudaSuccess) {
    return error;
  }
  const int panels = (p.tiles + kPanelTiles - 1) / kPanelTiles;
  // As many panels at a time as the workspace holds sums of.
  const int64_t panel_bytes = int64_t{kPanelTiles} * kTiles * p.segments * 32 * 16;
  const int at_once =
      static_cast<int>(std::min<int64_t>(panels, context.workspace_bytes / panel_bytes));
  for (int first = 0; first < panels; first += at_once) {
    WgmmaPlan plan = {};
    plan.first_panel = first;
    plan.panels = std::min(at_once, panels - first);
    plan.groups = std::min(plan.panels, context.sm_count / p.segments);
    const int a_group = (plan.panels + plan.groups - 1) / plan.groups;
    const auto run = [&] {
      if constexpr (kNan) {  // rare: one instance will do
        return LaunchWgmmaPart<true, kTiles, false, true>(p, context, plan, a_group, map);
      } else if constexpr (kTiles == 4) {
        return a_group <= 3
                   ? LaunchWgmmaPart<false, 4, false, false>(p, context, plan, a_group, map)
                   : LaunchWgmmaPart<false, 4, false, true>(p, context, plan, a_group, map);
      } else {
        if (a_group <= 3) {
          return LaunchWgmmaPart<false, kTiles, true, false>(p, context, plan, a_group, map);
        }
        return a_group <= 5
                   ? LaunchWgmmaPart<false, kTiles, false, false>(p, context, plan, a_group, map)
                   : LaunchWgmmaPart<false, kTiles, true, true>(p, context, plan, a_group, map);
      }
    };
    if (const cudaError_t error = run(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fulcrum::cuda

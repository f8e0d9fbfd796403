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
#include "kernels/cuda/meeting.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fulcrum::cuda {

inline constexpr int kStageBytes = kPanelTiles * kFp8BlockBytes;

// How the warpgroups of a thread block share its work. Which is fastest where was measured; none
// changes a bit. The eight instructions of a block wait for each other, so a warpgroup alone is far
// from busy.
enum class Sharing {
  kPanels,      // a panel each
  kPairs,       // a panel each, two blocks at a time: two chains take little longer than one
  kManyPanels,  // panels in turn, each finished one panel later
  kBlocks,      // one panel: its blocks in turn, whose inner sums meet in shared memory
};
template <int kTiles, Sharing kSharing>
inline constexpr int kMaxWarpgroups =  // by registers
    kSharing == Sharing::kPairs || (kSharing == Sharing::kManyPanels && kTiles == 4) ? 3 : 5;

struct WgmmaPlan {
  int groups;       // thread blocks a segment: each has its own panels
  int warpgroups;   // a thread block
  int stages;       // of a warpgroup's ring
  int first_panel;  // of this launch
  int panels;
};

template <bool kNan, int kTiles, Sharing kSharing>
__global__ void __launch_bounds__(kMaxWarpgroups<kTiles, kSharing> * 128, 1)
    WgmmaProduct(Product p, WgmmaPlan plan, uint4* workspace,
                 const __grid_constant__ CUtensorMap activations) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte shared[];
  constexpr int kBlockX = kTiles * kWgmmaColumns * kBlockK * 2;  // bytes of a block's activations
  constexpr bool kMany = kSharing == Sharing::kManyPanels;
  constexpr bool kBlocks = kSharing == Sharing::kBlocks;
  const int lane = threadIdx.x % 32, thread_warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int warpgroup = thread_warp / 4, warp = thread_warp % 4;
  const int rank = static_cast<int>(blockIdx.x) % p.segments;
  const int group = static_cast<int>(blockIdx.x) / p.segments;
  const int first_block = rank * p.segment_blocks;
  const int blocks = min(p.segment_blocks, p.blocks - first_block);
  const int first =
      static_cast<int>(int64_t{plan.panels} * group / plan.groups) + (kBlocks ? 0 : warpgroup);
  const int first_own = kBlocks ? warpgroup : 0, next_own = kBlocks ? plan.warpgroups : 1;
  const int end = static_cast<int>(int64_t{plan.panels} * (group + 1) / plan.groups);
  const int jobs = first < end ? (end - first + plan.warpgroups - 1) / plan.warpgroups : 0;
  const int uses = jobs * ((blocks - first_own + next_own - 1) / next_own);

  const uint32_t x = SharedAddress(shared);
  const uint32_t rings = x + p.segment_blocks * kBlockX;
  const uint32_t barriers = rings + plan.warpgroups * plan.stages * kStageBytes;
  const uint32_t ring = rings + warpgroup * plan.stages * kStageBytes;
  const uint32_t full = barriers + warpgroup * plan.stages * 16, empty = full + plan.stages * 8;
  const uint32_t x_full = barriers + plan.warpgroups * plan.stages * 16;
  [[maybe_unused]] const uint32_t inner_sums = (x_full + p.segment_blocks * 8 + 15) / 16 * 16;

  const bool producer = warp == 0 && lane == 0;
  const uint64_t policy = ReadOnce();
  int next_panel = first, next_block = first_own;
  const auto ask = [&](int stage) {
    BarrierExpect(full + 8 * stage, kStageBytes);
    const int64_t block =
        int64_t{plan.first_panel + next_panel} * p.blocks + first_block + next_block;
    BulkCopy(ring + stage * kStageBytes, p.codes + block * kStageBytes, kStageBytes,
             full + 8 * stage, policy);
    next_block += next_own;
    if (next_block >= blocks) {
      next_block = first_own;
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

  float outer[kTiles][4] = {}, before[kMany ? kTiles : 1][4] = {};
  float next_scale = 0;
  int block = first_own, job = 0;
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

  // kCount blocks of the panel side by side; what is done with their inner sums is `take`'s.
  const auto multiply = [&]<int kCount>(std::integral_constant<int, kCount>, const auto& take) {
    uint32_t a[kCount][32];
    float inner[kCount][kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) read(a[i]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) BarrierWait(x_full + 8 * (block + i), 0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) pin(a[i], inner[i]);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) step_of(inner[i], a[i], block + i, step);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    refill(kCount);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      pin(a[i], inner[i]);
      take(inner[i], block + i);
    }
  };

  if constexpr (kBlocks) {
    // [block][column tile][thread of a warpgroup]
    float4* const inners = reinterpret_cast<float4*>(shared + (inner_sums - x));
    const auto keep = [&](const float(&inner)[kTiles][4], int of_block) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        inners[(of_block * kTiles + t) * 128 + threadIdx.x % 128] =
            make_float4(inner[t][0], inner[t][1], inner[t][2], inner[t][3]);
      }
    };
    for (int use = 0; use < uses; ++use, block += next_own) {
      multiply(std::integral_constant<int, 1>(), keep);
    }
    __syncthreads();
    if (jobs == 0) return;
    for (int t = warpgroup; t < kTiles; t += plan.warpgroups) {
      float sum[4] = {};
      for (int b = 0; b < blocks; ++b) {
        const float4 inner = inners[(b * kTiles + t) * 128 + threadIdx.x % 128];
        const float block_scale = __shfl_sync(~0u, scale, b);
        sum[0] = __fmaf_rn(block_scale, inner.x, sum[0]);
        sum[1] = __fmaf_rn(block_scale, inner.y, sum[1]);
        sum[2] = __fmaf_rn(block_scale, inner.z, sum[2]);
        sum[3] = __fmaf_rn(block_scale, inner.w, sum[3]);
      }
      Leave<kTiles>(p, workspace, sum, first, warp, t, rank, lane);
      Finish<kTiles>(p, workspace, sum, first, plan.first_panel, warp, t, rank, lane);
    }
  } else {
    for (; job < jobs; ++job) {
      const int panel = first + job * plan.warpgroups;
      if (kMany && job + 1 < jobs) next_scale = scale_of(panel + plan.warpgroups);
      block = 0;
      if constexpr (kSharing == Sharing::kPairs) {
        for (; block + 1 < blocks; block += 2) multiply(std::integral_constant<int, 2>(), fold);
      }
      for (; block < blocks; ++block) multiply(std::integral_constant<int, 1>(), fold);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        Leave<kTiles>(p, workspace, outer[t], panel, warp, t, rank, lane);
      }
      if constexpr (kMany) {
        // Finished one panel later, when the others have long left their sums.
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (job > 0) {
            Finish<kTiles>(p, workspace, before[t], panel - plan.warpgroups, plan.first_panel, warp,
                           t, rank, lane);
          }
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            before[t][e] = outer[t][e];
            outer[t][e] = 0;
          }
        }
        scale = next_scale;
      }
    }
    if (jobs == 0) return;
    const int last = first + (jobs - 1) * plan.warpgroups;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      Finish<kTiles>(p, workspace, kMany ? before[kMany ? t : 0] : outer[t], last, plan.first_panel,
                     warp, t, rank, lane);
    }
  }
#endif
}

// False where this kernel cannot serve: another kernel of the class must.
inline bool WgmmaServes(const Product& p, const CudaContext& context) {
  return context.has_wgmma && p.segments <= context.sm_count;
}

// No deeper: what is asked for early queues in front of what is needed now.
constexpr int RingStages(Sharing sharing, int warpgroups) {
  return sharing == Sharing::kPairs ? 4 : warpgroups <= 3 ? 3 : 2;
}

// Shared memory of a plan, bytes.
template <int kTiles, Sharing kSharing>
int WgmmaShared(const Product& p, const WgmmaPlan& plan) {
  const int inner_sums =
      kSharing == Sharing::kBlocks ? p.segment_blocks * kTiles * 128 * 16 + 16 : 0;
  return p.segment_blocks * kTiles * kWgmmaColumns * kBlockK * 2 +
         plan.warpgroups * plan.stages * (kStageBytes + 16) + p.segment_blocks * 8 + inner_sums;
}

template <bool kNan, int kTiles, Sharing kSharing>
cudaError_t LaunchWgmmaPart(const Product& p, const CudaContext& context, WgmmaPlan plan,
                            int warpgroups, const CUtensorMap& map) {
  const auto kernel = &WgmmaProduct<kNan, kTiles, kSharing>;
  plan.warpgroups = std::min(warpgroups, kMaxWarpgroups<kTiles, kSharing>);
  plan.stages = RingStages(kSharing, plan.warpgroups);
  const int shared = WgmmaShared<kTiles, kSharing>(p, plan);
  if (const cudaError_t error = AllowShared(kernel, shared); error != cudaSuccess) {
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
    const auto launch = [&]<Sharing kSharing>(std::integral_constant<Sharing, kSharing>,
                                              int count) {
      return LaunchWgmmaPart<kNan, kTiles, kSharing>(p, context, plan, count, map);
    };
    const auto choose = [&] {
      if constexpr (!kNan) {  // a NaN is rare: one instance will do
        if (a_group == 1) {
          for (int count = std::min(5, p.segment_blocks); count > 1; --count) {
            WgmmaPlan fits = plan;
            fits.warpgroups = count;
            fits.stages = RingStages(Sharing::kBlocks, count);
            if (WgmmaShared<kTiles, Sharing::kBlocks>(p, fits) > context.max_shared_bytes) continue;
            return launch(std::integral_constant<Sharing, Sharing::kBlocks>(), count);
          }
        }
        if constexpr (kTiles < 4) {
          if (a_group <= 3) {
            return launch(std::integral_constant<Sharing, Sharing::kPairs>(), a_group);
          }
        }
        if (a_group <= 5) {
          return launch(std::integral_constant<Sharing, Sharing::kPanels>(), a_group);
        }
      }
      return launch(std::integral_constant<Sharing, Sharing::kManyPanels>(), a_group);
    };
    if (const cudaError_t error = choose(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fulcrum::cuda

// Class exact for q2_0 (order.h) on integer tensor cores, in one pass over the weights.
//
// A cluster of two thread blocks processes tiles of 16 rows, which arrive one after the other in
// rings in shared memory. One block has the even chunks of codes and x, the other the odd ones. The
// order's butterfly crosses from even to odd lanes in its last step only, so each block computes
// half of every result alone. Multiplying warps (q2_imma_multiply.cuh) store the sums of their
// lanes in shared memory. Finishing warps do the butterfly's steps, send half of the results to the
// other block and complete the other half. There is no barrier of all warps.
//
// Before sm_90 there are no clusters. Then a thread block has whole tiles and multiplies the even
// chunks, then the odd ones, and all its threads do the butterfly's steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/grid_dependency.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/pipeline_state.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/q2/q2_imma_finish.cuh"
#include "kernels/cuda/q2/q2_imma_multiply.cuh"
#include "kernels/cuda/q2/q2_imma_rows.cuh"

namespace fulcrum::cuda {

// With bulk copies there are one copying warp and kQ2FinishWarps finishing warps more.
constexpr int Q2ImmaThreads(int warps, bool bulk_copies) {
  return (warps + (bulk_copies ? 1 + kQ2FinishWarps : 0)) * 32;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kQ2ImmaCopies = false;
#else
inline constexpr bool kQ2ImmaCopies = true;
#endif

template <int kWarps, int kStepTiles, int kColumnTiles, int kSpread, bool kXShared>
struct Q2ImmaProduct {
  using Multiply =
      Q2ImmaMultiply<kWarps, kColumnTiles, kSpread, kXShared, (kStepTiles > kColumnTiles)>;
  using X = typename Multiply::X;
  template <int kTiles>
  using Sums = typename Multiply::template Sums<kTiles>;
  using Finish = Q2ImmaFinish<kWarps, kStepTiles, kColumnTiles, kSpread>;
  static constexpr int kStepFragments = Finish::kStepFragments;
  static constexpr int kWarpFloats = Finish::kWarpFloats;
  // Whether each warp copies or quantises the x that it multiplies by; otherwise bulk copies bring
  // x.
  static constexpr bool kOwnX = Q2OwnX(kColumnTiles, kXShared);
  static constexpr bool kBulkX = kXShared && !kOwnX;

  const Q2ImmaArgs& p;
  const int lane, warp, parity, first_column, first_tile, tile_count;
  std::byte* const shared;  // stages; then x, sums, what is received, barriers
  float* const sums;
  const uint32_t full, empty, x_full, left, taken, sent;  // barriers, after the start values

  __device__ __forceinline__ Q2ImmaProduct(const Q2ImmaArgs& args, std::byte* memory, int group,
                                           int column_group, int parity_)
      : p(args),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0)),
        parity(parity_),
        first_column(column_group * kColumnTiles * kQ8ColumnTile),
        first_tile(group * p.plan.group_tiles + min(group, p.plan.longer_groups)),
        tile_count(p.plan.group_tiles + (group < p.plan.longer_groups ? 1 : 0)),
        shared(memory),
        sums(reinterpret_cast<float*>(memory + p.plan.sums_at)),
        full(SharedAddress(memory) + p.plan.barriers_at + 16),
        empty(full + p.plan.stages * 8),
        x_full(empty + p.plan.stages * 8),
        left(x_full + p.plan.x_pieces * 8),
        taken(left + p.plan.sum_buffers * 8),
        sent(taken + p.plan.sum_buffers * 8) {}

  __device__ __forceinline__ const std::byte* Tile(int i) const {
    const Q2Target& target = p.TargetOf(first_tile + i);
    return target.tiles + int64_t{first_tile + i - target.first_tile} * p.tile_bytes;
  }
  // Address of a step's tiles.
  __device__ __forceinline__ uint32_t Stage(int i) const {
    return SharedAddress(shared) + i * kStepTiles * p.plan.tile_bytes;
  }
  // The thread block's columns of x in device memory, chunks of one parity.
  __device__ __forceinline__ const std::byte* DeviceX(int of) const {
    return p.x + first_column / kQ8ColumnTile * Q8FragmentTileBytes(p.layout.chunks) +
           of * p.layout.half_chunks * Multiply::kXChunkBytes;
  }
  // shared_of: which parity's part of shared memory.
  __device__ __forceinline__ X XOf(int of, int shared_of) const {
    const uint32_t at = SharedAddress(shared) + p.plan.x_at +
                        shared_of * p.layout.half_chunks * Multiply::kXChunkBytes;
    return X(at, kXShared ? nullptr : DeviceX(of), lane);
  }
  __device__ __forceinline__ Finish TheFinish() const {
    return {p,          lane,       parity, first_column,
            first_tile, tile_count, sums,   SharedAddress(shared) + p.plan.received_at,
            left,       taken,      sent};
  }

  __device__ __forceinline__ void InitFull() const {
#pragma unroll 1
    for (int i = 0; i < p.plan.stages; ++i) MbarrierInit(full + 8 * i, 1);
    MbarrierInitFence();
  }
  __device__ __forceinline__ void InitOthers() const {
    Multiply::WriteStarts(shared + p.plan.barriers_at);
#pragma unroll 1
    for (int i = 0; i < p.plan.stages; ++i) MbarrierInit(empty + 8 * i, kWarps);
#pragma unroll 1
    for (int i = 0; i < p.plan.x_pieces; ++i) MbarrierInit(x_full + 8 * i, 1);
#pragma unroll 1
    for (int i = 0; i < p.plan.sum_buffers; ++i) {
      MbarrierInit(left + 8 * i, kWarps);
      MbarrierInit(taken + 8 * i, kQ2FinishWarps);
    }
#pragma unroll 1
    for (int i = 0; i < 2 * kQ2FinishWarps; ++i) MbarrierInit(sent + 8 * i, 2);
    MbarrierInitFence();
  }
  // Barriers are initialised. Only warps that write to the other block's memory wait for that
  // block.
  __device__ __forceinline__ static void Start() {
    __syncthreads();
    ClusterArriveRelaxed();
  }

  // Copying warp: one thread starts the bulk copies of the weights, as many as there is room for
  // before anything else. Where x arrives by bulk copies too, its copies follow the first step's
  // weights, since all warps wait for x.
  __device__ __forceinline__ void Produce() const {
    const uint64_t policy = EvictFirstPolicy();
    const int from = p.layout.HalfAt(parity), bytes = p.layout.HalfBytes(parity);
    const int steps = (tile_count + kStepTiles - 1) / kStepTiles, stages = p.plan.stages;
    const auto ask = [&](int step, int stage) {
      const int first = step * kStepTiles, tiles = min(kStepTiles, tile_count - first);
      MbarrierArriveExpectTx(full + 8 * stage, tiles * bytes);
      for (int i = 0; i < tiles; ++i) {
        BulkCopy(Stage(stage) + i * p.plan.tile_bytes, Tile(first + i) + from, bytes,
                 full + 8 * stage, policy);
      }
    };
    int step = 0;
    const int at_once = min(stages, steps);
    if (lane == 0) {
      InitFull();
#pragma unroll 1
      for (; step < (kBulkX ? 1 : at_once); ++step) ask(step, step);
    }
    __syncwarp();
    Start();
    if constexpr (kBulkX) {
      WaitOnDependentGrids();
      constexpr int kPieceBytes = kWarps * Multiply::kXChunkBytes, kOfTurn = kQ2Lanes / kWarps;
      const std::byte* const x = DeviceX(parity);
      const uint32_t to = SharedAddress(shared) + p.plan.x_at;
      // Each lane starts one copy, since a single thread needs 120 ns a copy. In the order in which
      // warps use them.
      if (const int order = lane; order < 4 * kOfTurn) {
        int piece = order % 4 * kOfTurn + order / 4;
#pragma unroll 1
        for (; piece < p.plan.x_pieces; piece += 4 * kOfTurn) {
          const int at = piece * kPieceBytes, size = min(kPieceBytes, p.plan.x_bytes - at);
          MbarrierArriveExpectTx(x_full + 8 * piece, size);
          BulkCopy(to + at, x + at, size, x_full + 8 * piece, policy);
        }
      }
    }
    if (lane != 0) return;
#pragma unroll 1
    for (; step < at_once; ++step) ask(step, step);
    PipelineState at;
#pragma unroll 1
    for (; step < steps; ++step, at.Advance(stages)) {
      MbarrierWait(empty + 8 * at.stage, at.parity);
      ask(step, at.stage);
    }
  }

  // kTiles: the tiles of a full step, or 1. Where fewer tiles are left, products of stale data are
  // computed and not stored.
  template <int kTiles>
  __device__ __forceinline__ void Step(const Multiply& multiply, const X& x, bool x_arrives,
                                       PipelineState& at, PipelineState& sums_at) const {
    MbarrierWait(full + 8 * at.stage, at.parity);
    uint32_t where[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) where[i] = Stage(at.stage) + p.tile_at[i];
    Sums<kTiles> own;
    multiply(where, x, x_arrives, own);
    __syncwarp();
    if (lane == 0) MbarrierArrive(empty + 8 * at.stage);
    at.Advance(p.plan.stages);
    MbarrierWait(taken + 8 * sums_at.stage, sums_at.parity ^ 1);  // at first at once
    Finish::template Leave<kTiles>(sums + sums_at.stage * kWarps * kWarpFloats, warp, lane, own);
    __syncwarp();
    if (lane == 0) MbarrierArrive(left + 8 * sums_at.stage);
    sums_at.Advance(p.plan.sum_buffers);
  }

  __device__ __forceinline__ void RunStreaming() const {
    if (warp == kWarps) {
      Produce();
      return;
    }
    if (warp > kWarps) {
      if (warp == kWarps + 1 && lane == 0) InitOthers();
      __syncwarp();
      Start();
      ClusterWait();
      TheFinish().All(warp - kWarps - 1);
      return;
    }
    if constexpr (kOwnX) {
      WaitOnDependentGrids();
      Q2OwnRows<kWarps, kColumnTiles, kSpread> rows(p, warp, lane, parity);
      if (p.plan.fused) {
        rows.LoadFirst();
        rows.Quantise(shared + p.plan.x_at);
      } else {
        rows.Bring(SharedAddress(shared) + p.plan.x_at, DeviceX(parity));
      }
      Start();
      AsyncWait<0>();
      __syncwarp();
    } else {
      Start();
      WaitOnDependentGrids();
    }
    const Multiply multiply(p, warp, lane, p.layout.CodesInHalf(parity),
                            p.layout.ScalesInHalf(parity), full - 16, x_full);
    const X x = XOf(parity, 0);
    PipelineState at, sums_at;
    int done = 0;
#pragma unroll 1
    for (; done + (kStepTiles > 1) < tile_count; done += kStepTiles) {
      Step<kStepTiles>(multiply, x, kBulkX && done == 0, at, sums_at);
    }
    // A single last tile runs as a step of one.
    if (done < tile_count) Step<1>(multiply, x, kBulkX && done == 0, at, sums_at);
  }

  // Without bulk copies all threads copy the tiles of a step, 16 bytes a load.
  __device__ __forceinline__ void Bring(std::byte* to, const std::byte* from, int bytes) const {
    for (int at = static_cast<int>(threadIdx.x) * 16; at < bytes; at += kWarps * 32 * 16) {
      *reinterpret_cast<uint4*>(to + at) = __ldg(reinterpret_cast<const uint4*>(from + at));
    }
  }
  __device__ __forceinline__ void RunCopying() const {
    std::byte* const shared_x = shared + p.plan.x_at;
    if (threadIdx.x == 0) Multiply::WriteStarts(shared + p.plan.barriers_at);
    if constexpr (kXShared) {
      if (!p.plan.fused) {
        Bring(shared_x, DeviceX(0), p.plan.x_bytes);
      } else if constexpr (kOwnX) {
#pragma unroll 1
        for (int of = 0; of < 2; ++of) {
          Q2OwnRows<kWarps, kColumnTiles, kSpread> rows(p, warp, lane, of);
          rows.LoadFirst();
          rows.Quantise(shared_x + of * p.plan.x_bytes / 2);
        }
      }
    }
    const Finish finish = TheFinish();
    constexpr int kRounds = (kStepFragments + kWarps - 1) / kWarps;  // fragments of a warp
    for (int done = 0; done < tile_count; done += kStepTiles) {
      const int tiles = min(kStepTiles, tile_count - done);
      __syncthreads();  // the step before has read its tiles
      uint32_t where[kStepTiles];
#pragma unroll
      for (int i = 0; i < kStepTiles; ++i) {
        const int at = i * p.plan.tile_bytes;
        if (i < tiles) Bring(shared + at, Tile(done + i), p.tile_bytes);
        where[i] = SharedAddress(shared) + at;
      }
      typename Finish::Elements even[kRounds];
#pragma unroll 1
      for (int of = 0; of < 2; ++of) {
        __syncthreads();  // the tiles are there, and sums were read
        const Multiply multiply(p, warp, lane, p.layout.CodesAt(0, of), p.layout.scales_at,
                                full - 16, 0);
        Sums<kStepTiles> own;
        multiply(where, XOf(of, of), false, own);
        Finish::template Leave<kStepTiles>(sums, warp, lane, own);
        __syncthreads();
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
          const int fragment = round * kWarps + warp;
          if (fragment >= tiles * kColumnTiles) continue;
          const auto half = finish.Half(sums, fragment);
          if (of == 0) {
            even[round] = half;
            continue;
          }
          const auto whole = Finish::Added(even[round], half);
          finish.StoreBoth(whole, done + fragment / kColumnTiles, fragment % kColumnTiles);
        }
      }
    }
  }
};

template <int kWarps, int kStepTiles, int kColumnTiles, int kSpread, bool kXShared>
__global__ void __launch_bounds__(Q2ImmaThreads(kWarps, kQ2ImmaCopies), 1)
    Q2ImmaKernel(const __grid_constant__ Q2ImmaArgs p) {
  extern __shared__ __align__(128) std::byte shared[];
  LaunchDependentGrids();
  using Product = Q2ImmaProduct<kWarps, kStepTiles, kColumnTiles, kSpread, kXShared>;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const int parity = static_cast<int>(ClusterRank()), block = static_cast<int>(blockIdx.x) / 2;
#else
  const int parity = 0, block = static_cast<int>(blockIdx.x);
#endif
  const int group = p.by_column_groups(block);
  const int column_group = block - group * p.plan.column_groups;
  const Product product(p, shared, group, column_group, parity);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  product.RunStreaming();
#else
  product.RunCopying();
#endif
}

}  // namespace fulcrum::cuda

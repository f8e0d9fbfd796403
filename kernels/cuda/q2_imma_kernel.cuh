// Class exact for q2_0 (order.h) on integer tensor cores, one pass over the weights, at the speed
// of the read.
//
// Two thread blocks, a cluster, work through tiles of 16 rows that come one after the other into
// rings in shared memory: one has the even chunks, codes and x, the other the odd ones. The order's
// butterfly crosses from even to odd lanes in its last step only, so each block comes to half of a
// result by itself. Warps of a block multiply (q2_imma_multiply.cuh) and leave their lanes' sums in
// shared memory; finishing warps take the butterfly's steps, send half of the halves to the other
// block and end the results of the others. Nobody waits for all.
//
// Where there are no clusters a thread block has whole tiles and multiplies by even chunks, then by
// odd ones, and all its threads take the butterfly's steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "kernels/cuda/grid_order.cuh"
#include "kernels/cuda/hopper_tile.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/q2_imma_multiply.cuh"
#include "kernels/cuda/q2_imma_rows.cuh"
#include "kernels/cuda/ring.cuh"

namespace fulcrum::cuda {

// Where there are bulk copies one more warp asks for them, and some finish.
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
  static constexpr int kElements = Multiply::kElements;
  // A fragment: a tile times a column tile, of which each lane has kElements outputs, the first
  // half of them of row lane / 4, the others of row lane / 4 + 8. Of a pair of thread blocks one
  // ends the former, one the latter.
  static constexpr int kStepFragments = kStepTiles * kColumnTiles;
  static constexpr int kWarpFloats = kStepFragments * 32 * kElements;
  static constexpr int kEnded = kElements / 2;
  static constexpr int kSentBytes = 32 * kEnded * 4;  // of a fragment
  static constexpr int kFinishRounds = (kStepFragments + kQ2FinishWarps - 1) / kQ2FinishWarps;
  // Where each warp brings or makes the x it multiplies by, else bulk copies do.
  static constexpr bool kOwnX = Q2OwnX(kColumnTiles, kXShared);
  static constexpr bool kBulkX = kXShared && !kOwnX;

  const Q2ImmaArgs& p;
  const int lane, warp, parity, first_column, first_tile, tile_count;
  std::byte* const shared;  // stages; then x, sums, what is received, barriers
  float* const sums;
  const uint32_t full, empty, x_full, left, taken, sent;  // barriers, after what sums start from

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
  // Where a step's tiles lie.
  __device__ __forceinline__ uint32_t Stage(int i) const {
    return SharedAddress(shared) + i * kStepTiles * p.plan.tile_bytes;
  }
  // The thread block's columns of x, of a parity's chunks, in device memory.
  __device__ __forceinline__ const std::byte* DeviceX(int of) const {
    return p.x + first_column / kQ8ColumnTile * Q8FragmentTileBytes(p.layout.chunks) +
           of * p.layout.half_chunks * Multiply::kXChunkBytes;
  }
  // shared_of: which parity's of those in shared memory.
  __device__ __forceinline__ X XOf(int of, int shared_of) const {
    const uint32_t at = SharedAddress(shared) + p.plan.x_at +
                        shared_of * p.layout.half_chunks * Multiply::kXChunkBytes;
    return X(at, kXShared ? nullptr : DeviceX(of), lane);
  }

  // buffer: [warp][fragment][lane][element].
  template <int kTiles>
  __device__ __forceinline__ void Leave(float* buffer, const Sums<kTiles>& own) const {
    float* const to = buffer + warp * kWarpFloats + lane * kElements;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        reinterpret_cast<Elements*>(to)[(i * kColumnTiles + c) * 32] = Packed(own[i][c]);
      }
    }
  }
  using Elements = std::conditional_t<kElements == 4, float4, float2>;
  __device__ __forceinline__ static Elements Packed(const float (&v)[kElements]) {
    if constexpr (kElements == 4)
      return make_float4(v[0], v[1], v[2], v[3]);
    else
      return make_float2(v[0], v[1]);
  }
  __device__ __forceinline__ static Elements Added(const Elements& a, const Elements& b) {
    Elements sum;
    sum.x = __fadd_rn(a.x, b.x);
    sum.y = __fadd_rn(a.y, b.y);
    if constexpr (kElements == 4) {
      sum.z = __fadd_rn(a.z, b.z);
      sum.w = __fadd_rn(a.w, b.w);
    }
    return sum;
  }

  // The butterfly's steps 16 (where warps have one lane each), 8, 4 and 2 of a fragment's outputs.
  __device__ __forceinline__ Elements Half(const float* buffer, int fragment) const {
    const float* const from = buffer + (fragment * 32 + lane) * kElements;
    const auto of = [&](int w) {
      return *reinterpret_cast<const Elements*>(from + w * kWarpFloats);
    };
    Elements eight[8], four[4];
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      eight[w] = of(w);
      if constexpr (kWarps == 16) eight[w] = Added(eight[w], of(w + 8));
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) four[w] = Added(eight[w], eight[w + 4]);
    return Added(Added(four[0], four[2]), Added(four[1], four[3]));
  }
  // Those of one of the two rows.
  __device__ __forceinline__ static void Take(const Elements& all, bool second,
                                              float (&some)[kEnded]) {
    if constexpr (kElements == 4) {
      some[0] = second ? all.z : all.x;
      some[1] = second ? all.w : all.y;
    } else {
      some[0] = second ? all.y : all.x;
    }
  }

  // Where results of one of a fragment's two rows go: of the block's tiles number `tile`.
  struct Place {
    void* y;
    int64_t pitch, at;
    int columns;  // that there are
  };
  __device__ __forceinline__ Place PlaceOf(int tile, int column_tile, int second) const {
    const Q2Target& target = p.TargetOf(first_tile + tile);
    const int64_t n =
        int64_t{first_tile + tile - target.first_tile} * kQ2TileRows + lane / 4 + second * kQ2Pairs;
    const int column = first_column + (column_tile * kQ8ColumnTile + lane % 4 * 2) / kSpread;
    return {target.y, target.y_pitch, column * target.y_pitch + n, n < target.n ? p.m - column : 0};
  }
  // The butterfly's last step was taken.
  __device__ __forceinline__ void Store(const Place& place, const float (&sums)[kEnded]) const {
#pragma unroll
    for (int e = 0; e < kEnded; ++e) {
      if (e < place.columns) {
        StoreResult(place.y, p.y_f32, place.at + e * place.pitch, sums[e]);
      }
    }
  }

  __device__ __forceinline__ void InitFull() const {
#pragma unroll 1
    for (int i = 0; i < p.plan.stages; ++i) BarrierInit(full + 8 * i, 1);
    BarriersReady();
  }
  __device__ __forceinline__ void InitOthers() const {
    Multiply::WriteStarts(shared + p.plan.barriers_at);
#pragma unroll 1
    for (int i = 0; i < p.plan.stages; ++i) BarrierInit(empty + 8 * i, kWarps);
#pragma unroll 1
    for (int i = 0; i < p.plan.x_pieces; ++i) BarrierInit(x_full + 8 * i, 1);
#pragma unroll 1
    for (int i = 0; i < p.plan.sum_buffers; ++i) {
      BarrierInit(left + 8 * i, kWarps);
      BarrierInit(taken + 8 * i, kQ2FinishWarps);
    }
#pragma unroll 1
    for (int i = 0; i < 2 * kQ2FinishWarps; ++i) BarrierInit(sent + 8 * i, 2);
    BarriersReady();
  }
  // The barriers are there. Only who writes to the other block's memory need wait until that is.
  __device__ __forceinline__ static void Start() {
    __syncthreads();
    ClusterArriveAll();
  }

  // A thread of its own brings the weights by bulk copies. What there is room for is asked for
  // before anything else; but x, which everybody waits for, where it comes this way before all but
  // the first.
  __device__ __forceinline__ void Produce() const {
    const uint64_t policy = ReadOnce();
    const int from = p.layout.HalfAt(parity), bytes = p.layout.HalfBytes(parity);
    const int steps = (tile_count + kStepTiles - 1) / kStepTiles, stages = p.plan.stages;
    const auto ask = [&](int step, int stage) {
      const int first = step * kStepTiles, tiles = min(kStepTiles, tile_count - first);
      BarrierExpect(full + 8 * stage, tiles * bytes);
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
    if (lane != 0) return;
    if constexpr (kBulkX) {
      WaitForPreviousGrid();
      constexpr int kPieceBytes = kWarps * Multiply::kXChunkBytes, kOfTurn = kQ2Lanes / kWarps;
      const std::byte* const x = DeviceX(parity);
      const uint32_t to = SharedAddress(shared) + p.plan.x_at;
#pragma unroll 1
      for (int order = 0; order < 4 * kOfTurn; ++order) {  // as the warps use them
        int piece = order % 4 * kOfTurn + order / 4;
#pragma unroll 1
        for (; piece < p.plan.x_pieces; piece += 4 * kOfTurn) {
          const int at = piece * kPieceBytes, size = min(kPieceBytes, p.plan.x_bytes - at);
          BarrierExpect(x_full + 8 * piece, size);
          BulkCopy(to + at, x + at, size, x_full + 8 * piece, policy);
        }
      }
    }
#pragma unroll 1
    for (; step < at_once; ++step) ask(step, step);
    Ring at;
#pragma unroll 1
    for (; step < steps; ++step, at.Next(stages)) {
      BarrierWait(empty + 8 * at.stage, at.phase);
      ask(step, at.stage);
    }
  }

  // A finishing warp has every kQ2FinishWarps-th fragment of a step. What one block sends the other
  // are the halves of one row of each, and word that they are all: which says, too, that the warp
  // there has read what it was sent two steps before.
  __device__ __forceinline__ void FinishAll(int own) const {
    const int other = parity ^ 1;
    constexpr int kSlotBytes = kStepFragments * kSentBytes;
    const uint32_t received =
        SharedAddress(shared) + p.plan.received_at + own * kSentBytes + lane * kEnded * 4;
    const uint32_t there = ClusterAddress(received, other);
    const uint32_t mine = sent + own * 16;
    const uint32_t theirs = ClusterAddress(mine, other);
    WaitForPreviousGrid();
    Ring at;
#pragma unroll 1
    for (int done = 0, step = 0; done < tile_count; done += kStepTiles, ++step) {
      const int fragments = min(kStepTiles, tile_count - done) * kColumnTiles;
      const uint32_t slot = step % 2 * kSlotBytes, barrier = step % 2 * 8;
      const float* const buffer = sums + at.stage * kWarps * kWarpFloats;
      BarrierWait(left + 8 * at.stage, at.phase);
      // All at once: each waits long for shared memory. Of fragments that are not there whatever
      // the buffer has.
      float kept[kFinishRounds][kEnded], away[kFinishRounds][kEnded];
#pragma unroll
      for (int round = 0; round < kFinishRounds; ++round) {
        const int fragment = min(own + round * kQ2FinishWarps, kStepFragments - 1);
        const Elements half = Half(buffer, fragment);
        Take(half, parity != 0, kept[round]);
        Take(half, parity == 0, away[round]);
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(taken + 8 * at.stage);
      int sending = 0;
#pragma unroll
      for (int round = 0; round < kFinishRounds; ++round) {
        if (own + round * kQ2FinishWarps >= fragments) continue;
        Send(there + slot + round * kQ2FinishWarps * kSentBytes, away[round], theirs + barrier);
        ++sending;
      }
      __syncwarp();
      if (lane == 0) {
        BarrierExpect(mine + barrier, sending * kSentBytes);
        ClusterArrive(mine + barrier, other);
      }
      at.Next(p.plan.sum_buffers);
      Place places[kFinishRounds];
#pragma unroll
      for (int round = 0; round < kFinishRounds; ++round) {
        const int fragment = min(own + round * kQ2FinishWarps, fragments - 1);
        places[round] = PlaceOf(done + fragment / kColumnTiles, fragment % kColumnTiles, parity);
      }
      BarrierWait(mine + barrier, step / 2 % 2);
#pragma unroll
      for (int round = 0; round < kFinishRounds; ++round) {
        if (own + round * kQ2FinishWarps >= fragments) continue;
        Receive(received + slot + round * kQ2FinishWarps * kSentBytes, kept[round]);
        Store(places[round], kept[round]);
      }
    }
  }
  __device__ __forceinline__ static void Send(uint32_t there, const float (&halves)[kEnded],
                                              uint32_t barrier_there) {
    const uint32_t first = __float_as_uint(halves[0]);
    if constexpr (kEnded == 2) {
      SendPair(there, make_uint2(first, __float_as_uint(halves[1])), barrier_there);
    } else {
      SendWord(there, first, barrier_there);
    }
  }
  // Adds the other halves: the butterfly's last step.
  __device__ __forceinline__ static void Receive(uint32_t from, float (&halves)[kEnded]) {
    if constexpr (kEnded == 2) {
      const uint2 two = SharedLoad64(from);
      halves[0] = __fadd_rn(halves[0], __uint_as_float(two.x));
      halves[1] = __fadd_rn(halves[1], __uint_as_float(two.y));
    } else {
      halves[0] = __fadd_rn(halves[0], __uint_as_float(SharedLoad32(from)));
    }
  }

  // kTiles: as many as a step has, or its only one. Where there are fewer than kTiles, products of
  // what was in shared memory before are made and left.
  template <int kTiles>
  __device__ __forceinline__ void Step(const Multiply& multiply, const X& x, bool x_arrives,
                                       Ring& at, Ring& sums_at) const {
    BarrierWait(full + 8 * at.stage, at.phase);
    uint32_t where[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) where[i] = Stage(at.stage) + p.tile_at[i];
    Sums<kTiles> own;
    multiply(where, x, x_arrives, own);
    __syncwarp();
    if (lane == 0) BarrierArrive(empty + 8 * at.stage);
    at.Next(p.plan.stages);
    BarrierWait(taken + 8 * sums_at.stage, sums_at.phase ^ 1);  // at first at once
    Leave<kTiles>(sums + sums_at.stage * kWarps * kWarpFloats, own);
    __syncwarp();
    if (lane == 0) BarrierArrive(left + 8 * sums_at.stage);
    sums_at.Next(p.plan.sum_buffers);
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
      ClusterWaitAll();
      FinishAll(warp - kWarps - 1);
      return;
    }
    if constexpr (kOwnX) {
      WaitForPreviousGrid();
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
      WaitForPreviousGrid();
    }
    const Multiply multiply(p, warp, lane, p.layout.CodesInHalf(parity),
                            p.layout.ScalesInHalf(parity), full - 16, x_full);
    const X x = XOf(parity, 0);
    Ring at, sums_at;
    int done = 0;
#pragma unroll 1
    for (; done + (kStepTiles > 1) < tile_count; done += kStepTiles) {
      Step<kStepTiles>(multiply, x, kBulkX && done == 0, at, sums_at);
    }
    // Of a last tile alone no more is made.
    if (done < tile_count) Step<1>(multiply, x, kBulkX && done == 0, at, sums_at);
  }

  // Without bulk copies all threads bring the tiles of a step, in 16-byte loads.
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
      Elements even[kRounds];
#pragma unroll 1
      for (int of = 0; of < 2; ++of) {
        __syncthreads();  // the tiles are there, and sums were read
        const Multiply multiply(p, warp, lane, p.layout.CodesAt(0, of), p.layout.scales_at,
                                full - 16, 0);
        Sums<kStepTiles> own;
        multiply(where, XOf(of, of), false, own);
        Leave<kStepTiles>(sums, own);
        __syncthreads();
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
          const int fragment = round * kWarps + warp;
          if (fragment >= tiles * kColumnTiles) continue;
          const Elements half = Half(sums, fragment);
          if (of == 0) {
            even[round] = half;
            continue;
          }
          const Elements whole = Added(even[round], half);
#pragma unroll
          for (int second = 0; second < 2; ++second) {
            float ended[kEnded];
            Take(whole, second != 0, ended);
            Store(PlaceOf(done + fragment / kColumnTiles, fragment % kColumnTiles, second), ended);
          }
        }
      }
    }
  }
};

template <int kWarps, int kStepTiles, int kColumnTiles, int kSpread, bool kXShared>
__global__ void __launch_bounds__(Q2ImmaThreads(kWarps, kQ2ImmaCopies), 1)
    Q2ImmaKernel(const __grid_constant__ Q2ImmaArgs p) {
  extern __shared__ __align__(128) std::byte shared[];
  LetNextGridStart();
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

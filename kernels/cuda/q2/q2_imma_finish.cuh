// The butterfly of q2_imma_kernel.cuh: adds up the sums of its warps, exchanges halves between the
// two thread blocks of a cluster, and stores results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/pipeline_state.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/gemm/gemm_params.cuh"
#include "kernels/cuda/q2/q2_imma_args.cuh"
#include "kernels/cuda/q2/q8_rows.h"

namespace fulcrum::cuda {

template <int kWarps, int kStepTiles, int kColumnTiles, int kSpread>
struct Q2ImmaFinish {
  static constexpr int kElements = 4 / kSpread;
  // A fragment: a tile times a column tile, of which each lane has kElements outputs, the first
  // half of them of row lane / 4, the others of row lane / 4 + 8. One of the two thread blocks
  // finishes the former, the other the latter.
  static constexpr int kStepFragments = kStepTiles * kColumnTiles;
  static constexpr int kWarpFloats = kStepFragments * 32 * kElements;
  static constexpr int kEnded = kElements / 2;
  static constexpr int kSentBytes = 32 * kEnded * 4;  // of a fragment
  static constexpr int kFinishRounds = (kStepFragments + kQ2FinishWarps - 1) / kQ2FinishWarps;
  using Elements = std::conditional_t<kElements == 4, float4, float2>;

  const Q2ImmaArgs& p;
  const int lane, parity, first_column, first_tile, tile_count;  // the thread block's
  const float* const sums;
  const uint32_t received_at, left, taken, sent;

  // buffer: [warp][fragment][lane][element].
  template <int kTiles>
  __device__ __forceinline__ static void Leave(
      float* buffer, int warp, int lane, const float (&own)[kTiles][kColumnTiles][kElements]) {
    float* const to = buffer + warp * kWarpFloats + lane * kElements;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        reinterpret_cast<Elements*>(to)[(i * kColumnTiles + c) * 32] = Packed(own[i][c]);
      }
    }
  }
  __device__ __forceinline__ static Elements Packed(const float (&v)[kElements]) {
    if constexpr (kElements == 4) {
      return make_float4(v[0], v[1], v[2], v[3]);
    } else {
      return make_float2(v[0], v[1]);
    }
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
  // The elements of one of the two rows.
  __device__ __forceinline__ static void Take(const Elements& all, bool second,
                                              float (&some)[kEnded]) {
    if constexpr (kElements == 4) {
      some[0] = second ? all.z : all.x;
      some[1] = second ? all.w : all.y;
    } else {
      some[0] = second ? all.y : all.x;
    }
  }

  // The destination of results of one of a fragment's two rows; `tile` counts the thread block's
  // tiles.
  struct Place {
    void* y;
    int64_t pitch, at;
    int columns;  // that exist
  };
  __device__ __forceinline__ Place PlaceOf(int tile, int column_tile, int second) const {
    const Q2Target& target = p.TargetOf(first_tile + tile);
    const int64_t n =
        int64_t{first_tile + tile - target.first_tile} * kQ2TileRows + lane / 4 + second * kQ2Pairs;
    const int column = first_column + (column_tile * kQ8ColumnTile + lane % 4 * 2) / kSpread;
    return {target.y, target.y_pitch, column * target.y_pitch + n, n < target.n ? p.m - column : 0};
  }
  // Stores results of the butterfly's last step.
  __device__ __forceinline__ void Store(const Place& place, const float (&sums)[kEnded]) const {
#pragma unroll
    for (int e = 0; e < kEnded; ++e) {
      if (e < place.columns) {
        StoreResult(place.y, p.y_f32, place.at + e * place.pitch, sums[e]);
      }
    }
  }

  __device__ __forceinline__ void StoreBoth(const Elements& whole, int tile,
                                            int column_tile) const {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      float ended[kEnded];
      Take(whole, second != 0, ended);
      Store(PlaceOf(tile, column_tile, second), ended);
    }
  }

  // A finishing warp has every kQ2FinishWarps-th fragment of a step. It sends the other thread
  // block the halves of one row of each fragment and then arrives at the barrier there. The arrival
  // also says that this warp has read what it received two steps before.
  __device__ __forceinline__ void All(int own) const {
    const int other = parity ^ 1;
    constexpr int kSlotBytes = kStepFragments * kSentBytes;
    const uint32_t received = received_at + own * kSentBytes + lane * kEnded * 4;
    const uint32_t there = ClusterMapShared(received, other);
    const uint32_t mine = sent + own * 16;
    const uint32_t theirs = ClusterMapShared(mine, other);
    WaitOnDependentGrids();
    PipelineState at;
#pragma unroll 1
    for (int done = 0, step = 0; done < tile_count; done += kStepTiles, ++step) {
      const int fragments = min(kStepTiles, tile_count - done) * kColumnTiles;
      const uint32_t slot = step % 2 * kSlotBytes, barrier = step % 2 * 8;
      const float* const buffer = sums + at.stage * kWarps * kWarpFloats;
      MbarrierWait(left + 8 * at.stage, at.parity);
      // All rounds at once, since each waits long for shared memory. For fragments that do not
      // exist this reads unused data.
      float kept[kFinishRounds][kEnded], away[kFinishRounds][kEnded];
#pragma unroll
      for (int round = 0; round < kFinishRounds; ++round) {
        const int fragment = min(own + round * kQ2FinishWarps, kStepFragments - 1);
        const Elements half = Half(buffer, fragment);
        Take(half, parity != 0, kept[round]);
        Take(half, parity == 0, away[round]);
      }
      __syncwarp();
      if (lane == 0) MbarrierArrive(taken + 8 * at.stage);
      int sending = 0;
#pragma unroll
      for (int round = 0; round < kFinishRounds; ++round) {
        if (own + round * kQ2FinishWarps >= fragments) continue;
        Send(there + slot + round * kQ2FinishWarps * kSentBytes, away[round], theirs + barrier);
        ++sending;
      }
      __syncwarp();
      if (lane == 0) {
        MbarrierArriveExpectTx(mine + barrier, sending * kSentBytes);
        MbarrierArriveRemote(mine + barrier, other);
      }
      at.Advance(p.plan.sum_buffers);
      Place places[kFinishRounds];
#pragma unroll
      for (int round = 0; round < kFinishRounds; ++round) {
        const int fragment = min(own + round * kQ2FinishWarps, fragments - 1);
        places[round] = PlaceOf(done + fragment / kColumnTiles, fragment % kColumnTiles, parity);
      }
      MbarrierWait(mine + barrier, step / 2 % 2);
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
      StoreAsync64(there, make_uint2(first, __float_as_uint(halves[1])), barrier_there);
    } else {
      StoreAsync32(there, first, barrier_there);
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
};

}  // namespace fulcrum::cuda

// A warp's part of the products of q2_imma_kernel.cuh: lanes of the order, of one parity, times a
// step's tiles.
//
// The chunks of a parity are numbered 0, 1, 2, ...; of them lane u of the parity's sixteen owns u,
// u + 16, u + 32 and u + 48, which begin its four virtual threads, and 64, 128, ... further on. The
// warp plays the virtual threads one after the other, so that one running sum of a virtual thread
// and one of a lane are all that an element needs: L = ((v0 + v1) + v2) + v3. Where a warp has two
// lanes, u and u + 8, their sum is the butterfly's first step.
//
// A chunk's integer sum is one m16n8k32 step that starts from a rounder's bits, so that its bits
// are a float already (q8_chunk.cuh): an element's term costs a subtraction, two multiplications
// and an addition.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/q2/q2_imma.cuh"
#include "kernels/cuda/q2/q2_imma_args.cuh"

namespace fulcrum::cuda {

inline constexpr int kQ2HalfThreads = kQ2Threads / 2;  // virtual
inline constexpr int kQ2TurnBytes = kQ2Lanes * kQ2ChunkBytes;

// kSpread 2: row r of x is column 2 r of the only column tile, and odd columns are unused. Up to
// four rows then need half of the float work, since a thread has an even and an odd column.
//
// kFine: rows g + 8 at four times the codes, with offsets of their own (Spread): fewer instructions
// where a step has more tiles than column tiles.
template <int kWarps, int kColumnTiles, int kSpread, bool kXShared, bool kFine>
struct Q2ImmaMultiply {
  static constexpr int kElements = 4 / kSpread;  // elements of a thread, of a tile and column tile
  static constexpr int kUpperStart = kFine ? kFineRounderBits : kRounderBits;
  static constexpr int kXChunkBytes = kColumnTiles * kQ8FragmentBytes;
  template <int kTiles>
  using Sums = float[kTiles][kColumnTiles][kElements];
  using X = Q8Fragments<kXShared>;

  const Q2ImmaArgs& p;
  const int warp;
  // Offsets in a stage of the thread's words of the parity's first chunk, and of its first scales.
  const uint32_t codes, scales;
  const uint32_t scale_turn;  // bytes of a turn's scales: sixteen chunks of the parity
  // In shared memory: the start values of sums, since the compiler keeps four registers of one load
  // but makes constants again for every step; and the barriers of pieces of x.
  const uint32_t starts_at, pieces;

  __device__ __forceinline__ Q2ImmaMultiply(const Q2ImmaArgs& args, int warp_, int lane,
                                            int codes_at, int scales_at, uint32_t starts,
                                            uint32_t x_pieces)
      : p(args),
        warp(warp_),
        codes(codes_at + lane / 4 * args.layout.code_pitch + lane % 4 * 4),
        scales(scales_at + lane / 4 * args.layout.scale_pitch),
        scale_turn((2 * kQ2Lanes >> args.layout.scale_shift) * 4),
        starts_at(starts),
        pieces(x_pieces) {}

  __device__ __forceinline__ static void WriteStarts(std::byte* to) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(kRounderBits, kRounderBits, kUpperStart, kUpperStart);
  }

  // A thread's codes and scales of a chunk.
  template <int kTiles>
  struct Weights {
    uint32_t words[kTiles], halves[kTiles];
    __device__ __forceinline__ void Load(const uint32_t (&tiles)[kTiles], uint32_t codes_at,
                                         uint32_t scales_at) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        words[i] = SharedLoad32(tiles[i] + codes_at);
        halves[i] = SharedLoad32(tiles[i] + scales_at);
      }
    }
  };

  // The first chunk of a virtual thread, or a further one, times the step's tiles. load_next is
  // called after the loads for this chunk.
  template <bool kFirst, int kTiles, class LoadNext>
  __device__ __forceinline__ void Chunk(const Weights<kTiles>& weights, const X& x,
                                        const uint32_t (&starts)[4], Sums<kTiles>& v,
                                        const LoadNext& load_next) const {
    uint32_t spread[kTiles][4];
    float2 d2[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if constexpr (kFine) {
        Spread(weights.words[i], spread[i]);
      } else {
        SpreadAlike(weights.words[i], spread[i]);
      }
      d2[i] = __half22float2(*reinterpret_cast<const __half2*>(&weights.halves[i]));
    }
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      const uint2 q = x.Words(c * kQ8FragmentBytes);
      const uint4 constants = x.Constants(c * kQ8FragmentBytes);
      if (c == 0) load_next();
      const float even = __uint_as_float(constants.x), odd = __uint_as_float(constants.y);
      const float offset[4] = {even, odd, kFine ? FineOffset(even) : even,
                               kFine ? FineOffset(odd) : odd};
      const float d8[2] = {__uint_as_float(constants.z), __uint_as_float(constants.w)};
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        int integers[4];
        ImmaM16N8K32(integers, spread[i], q, starts);
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int element = e * kSpread;
          const float s = __fsub_rn(__int_as_float(integers[element]), offset[element]);
          const float d = __fmul_rn(element < 2 ? d2[i].x : d2[i].y, d8[element % 2]);
          // The first term of a virtual thread or lane is not added to +0. That differs in the sign
          // of a zero only, which no result keeps.
          v[i][c][e] = kFirst ? __fmul_rn(d, s) : __fmaf_rn(d, s, v[i][c][e]);
        }
      }
    }
  }

  // Waits for the piece of x that has the chunk. Pieces arrive in the order of use. Bulk copies
  // only.
  __device__ __forceinline__ void WaitForPiece(int chunk) const {
    MbarrierWait(pieces + static_cast<uint32_t>(chunk) / kWarps * 8, 0);
  }

  // Computes a virtual thread; `weights` are those of its first chunk.
  template <int kTiles, class LoadNext>
  __device__ __forceinline__ void VirtualThread(const Weights<kTiles>& weights,
                                                const uint32_t (&tiles)[kTiles], int chunk,
                                                uint32_t codes_at, uint32_t scales_at, X x,
                                                bool x_arrives, const uint32_t (&starts)[4],
                                                Sums<kTiles>& v, const LoadNext& load_next) const {
    if (x_arrives) WaitForPiece(chunk);
    Chunk<true, kTiles>(weights, x, starts, v, load_next);
#pragma unroll 1
    for (chunk += kQ2HalfThreads; chunk < p.layout.half_chunks; chunk += kQ2HalfThreads) {
      codes_at += kQ2HalfThreads * kQ2ChunkBytes;
      scales_at += 4 * scale_turn;
      x.Advance(kQ2HalfThreads * kXChunkBytes);
      if (x_arrives) WaitForPiece(chunk);
      Weights<kTiles> further;
      further.Load(tiles, codes_at, scales_at);
      Chunk<false, kTiles>(further, x, starts, v, [] {});
    }
  }

  // The weights of the next virtual thread are loaded while one is multiplied. After the last one
  // the load reads unused data.
  template <int kTiles>
  __device__ __forceinline__ void Lane(const uint32_t (&tiles)[kTiles], int lane, X x,
                                       bool x_arrives, const uint32_t (&starts)[4],
                                       Sums<kTiles>& sums) const {
    uint32_t codes_at = codes + lane * kQ2ChunkBytes;
    uint32_t scales_at = scales + (2 * lane >> p.layout.scale_shift) * 4;
    x.Advance(lane * kXChunkBytes);
    Weights<kTiles> weights, next;
    const auto load_next = [&] {
      next.Load(tiles, codes_at + kQ2TurnBytes, scales_at + scale_turn);
    };
    weights.Load(tiles, codes_at, scales_at);
    VirtualThread<kTiles>(weights, tiles, lane, codes_at, scales_at, x, x_arrives, starts, sums,
                          load_next);
    const int end = min(p.layout.half_chunks, kQ2HalfThreads);
#pragma unroll 1
    for (int chunk = lane + kQ2Lanes; chunk < end; chunk += kQ2Lanes) {
      codes_at += kQ2TurnBytes;
      scales_at += scale_turn;
      x.Advance(kQ2Lanes * kXChunkBytes);
      Sums<kTiles> v;
      weights = next;
      VirtualThread<kTiles>(weights, tiles, chunk, codes_at, scales_at, x, x_arrives, starts, v,
                            load_next);
      Add<kTiles>(v, sums);
    }
  }

  // tiles: addresses of stages. x: from the parity's first chunk on.
  template <int kTiles>
  __device__ __forceinline__ void operator()(const uint32_t (&tiles)[kTiles], const X& x,
                                             bool x_arrives, Sums<kTiles>& sums) const {
    uint32_t starts[4] = {kRounderBits, kRounderBits, kUpperStart, kUpperStart};
    if constexpr (kXShared) {  // otherwise registers do not suffice
      const uint4 four = SharedLoad(starts_at);
      starts[0] = four.x, starts[1] = four.y, starts[2] = four.z, starts[3] = four.w;
    }
    Lane<kTiles>(tiles, warp, x, x_arrives, starts, sums);
    if constexpr (kWarps < kQ2Lanes) {
      static_assert(kWarps == kQ2Lanes / 2);
      Sums<kTiles> other;
      Lane<kTiles>(tiles, warp + kWarps, x, x_arrives, starts, other);
      Add<kTiles>(other, sums);
    }
  }

  template <int kTiles, class Use>
  __device__ __forceinline__ static void ForEach(const Use& use) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) use(i, c, e);
      }
    }
  }
  template <int kTiles>
  __device__ __forceinline__ static void Add(const Sums<kTiles>& more, Sums<kTiles>& sums) {
    ForEach<kTiles>(
        [&](int i, int c, int e) { sums[i][c][e] = __fadd_rn(sums[i][c][e], more[i][c][e]); });
  }
};

}  // namespace fulcrum::cuda

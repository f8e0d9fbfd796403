// Class exact for q2_0 (order.h) on integer tensor cores, one pass over the weights, at the speed
// of the read.
//
// A thread block works through tiles of 16 rows, whole K, that come one after the other into a ring
// in shared memory. Warp w of sixteen owns the chunks w, w + 16, w + 32, ...: of the order's 128
// virtual threads those of lanes w and w + 16. It plays them one after the other, so that one
// running sum of a virtual thread, one of a lane and one of the pair are all that an element needs:
// L = ((v0 + v1) + v2) + v3 of either lane, then the butterfly's first step, L[w] + L[w + 16]. The
// sixteen results meet in shared memory, where the other four steps are taken.
//
// A chunk's integer sum is one m16n8k32 step that starts from a rounder's bits, so that its bits
// are a float already (q8_chunk.cuh): an element's term costs a subtraction, two multiplications
// and an addition.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/grid_order.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/q2_imma.cuh"
#include "kernels/cuda/q2_imma_args.cuh"
#include "kernels/cuda/q2_imma_rows.cuh"
#include "kernels/cuda/ring.cuh"

namespace fulcrum::cuda {

// Where there are bulk copies one more warp asks for them.
constexpr int Q2ImmaThreads(bool bulk_copies) {
  return (kQ2ImmaWarps + (bulk_copies ? 1 : 0)) * 32;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr int kQ2ImmaThreads = Q2ImmaThreads(false);
#else
inline constexpr int kQ2ImmaThreads = Q2ImmaThreads(true);
#endif

// kSpread 2: row r of x is column 2 r of the only column tile, and the odd columns are nobody's: up
// to four rows need half of the float work, since a thread has an even and an odd column.
template <int kColumnTiles, int kSpread, bool kXShared>
struct Q2ImmaProduct {
  static constexpr int kElements = 4 / kSpread;  // that a thread has of a tile's column tile
  static constexpr int kSumFloats = kQ2SumBytes / 4;
  static constexpr int kStepTiles = Q2StepTiles(kColumnTiles, kXShared);
  static constexpr int kWarpFloats = kStepTiles * kColumnTiles * kSumFloats;
  // Rows g + 8 at four times the codes (Spread): offsets of their own, for two column tiles no
  // gain.
  static constexpr bool kFine = kColumnTiles == 1;
  static constexpr int kUpperStart = kFine ? kFineRounderBits : kRounderBits;
  static constexpr int kXChunkBytes = kColumnTiles * kQ8FragmentBytes;
  template <int kTiles>
  using Sums = float[kTiles][kColumnTiles][kElements];

  const Q2ImmaArgs& p;
  const int lane, warp, first_column, first_tile, tile_count;
  // Where in a tile the thread finds its word of the warp's first chunk, and the pair's scales.
  uint32_t first_codes, first_scales;
  // From there to the places of the same number in the last slab.
  const uint32_t last_codes, last_scales;
  std::byte* const shared;  // the ring; then x, sums, barriers
  std::byte* const shared_x;
  float* const sums;
  const uint32_t full, empty, x_full;  // barriers: a tile's two, a piece's of x

  __device__ __forceinline__ Q2ImmaProduct(const Q2ImmaArgs& args, std::byte* memory, int group,
                                           int column_group)
      : p(args),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0)),
        first_column(column_group * kColumnTiles * kQ8ColumnTile),
        first_tile(group * p.plan.group_tiles + min(group, p.plan.longer_groups)),
        tile_count(p.plan.group_tiles + (group < p.plan.longer_groups ? 1 : 0)),
        first_codes(lane / 4 * p.walk.code_pitch + warp * kQ2ChunkBytes + lane % 4 * 4),
        first_scales(p.walk.scales_at + lane / 4 * p.walk.scale_pitch +
                     (warp >> p.scale_shift) * 4),
        last_codes(p.walk.last_codes + lane / 4 * p.walk.last_code_pitch),
        last_scales(p.walk.last_scales + lane / 4 * p.walk.last_scale_pitch),
        shared(memory),
        shared_x(memory + p.plan.x_at),
        sums(reinterpret_cast<float*>(memory + p.plan.sums_at)),
        full(SharedAddress(memory) + p.plan.barriers_at),
        empty(full + p.plan.stages * 8),
        x_full(empty + p.plan.stages * 8) {
    if constexpr (kXShared && kColumnTiles == 1) {  // for two there are no registers
      Keep(first_codes);
      Keep(first_scales);
    }
  }

  __device__ __forceinline__ const std::byte* Tile(int i) const {
    const Q2Target& target = p.TargetOf(first_tile + i);
    return target.tiles + int64_t{first_tile + i - target.first_tile} * p.tile_bytes;
  }
  // The thread block's columns of x, in device memory.
  __device__ __forceinline__ const std::byte* DeviceX() const {
    return p.x + first_column / kQ8ColumnTile * Q8FragmentTileBytes(p.chunks);
  }
  // From the warp's first chunk on.
  __device__ __forceinline__ Q8Fragments<kXShared> X() const {
    Q8Fragments<kXShared> x(SharedAddress(shared_x), kXShared ? nullptr : DeviceX(), lane);
    x.Advance(warp * kXChunkBytes);
    if constexpr (kXShared) {
      Keep(x.words);
      if (kColumnTiles == 1) Keep(x.constants);
    }
    return x;
  }
  // Waits for whole warps of those that multiply.
  __device__ __forceinline__ void Together(int id) const { NamedBarrier(id, kQ2ImmaWarps * 32); }

  // The first chunk of a virtual thread, or a further one, times the step's tiles.
  template <bool kFirst, int kTiles>
  __device__ __forceinline__ void Chunk(const uint32_t (&tiles)[kTiles], uint32_t codes_at,
                                        uint32_t scales_at, const Q8Fragments<kXShared>& x,
                                        const int (&starts)[4], Sums<kTiles>& v) const {
    uint32_t words[kTiles], scales[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      words[i] = SharedLoadWord(tiles[i] + codes_at);
      scales[i] = SharedLoadWord(tiles[i] + scales_at);
    }
    uint32_t codes[kTiles][4];
    float2 d2[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if constexpr (kFine) {
        Spread(words[i], codes[i]);
      } else {
        SpreadAlike(words[i], codes[i]);
      }
      d2[i] = __half22float2(*reinterpret_cast<const __half2*>(&scales[i]));
    }
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      const uint2 q = x.Words(c * kQ8FragmentBytes);
      const uint4 constants = x.Constants(c * kQ8FragmentBytes);
      const float even = __uint_as_float(constants.x), odd = __uint_as_float(constants.y);
      const float offset[4] = {even, odd, kFine ? FineOffset(even) : even,
                               kFine ? FineOffset(odd) : odd};
      const float d8[2] = {__uint_as_float(constants.z), __uint_as_float(constants.w)};
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        int integers[4];
        Imma(integers, codes[i], q, starts);
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int element = e * kSpread;
          const float s = __fsub_rn(__int_as_float(integers[element]), offset[element]);
          const float d = __fmul_rn(element < 2 ? d2[i].x : d2[i].y, d8[element % 2]);
          // Adding the first to +0 differs from not adding it in the sign of a zero, which the sums
          // below, from +0 too, do not keep.
          v[i][c][e] = kFirst ? __fmul_rn(d, s) : __fmaf_rn(d, s, v[i][c][e]);
        }
      }
    }
  }

  // Of x, which comes piece by piece in the order of use: that of a chunk. Bulk copies only.
  __device__ __forceinline__ void WaitForPiece(int chunk) const {
    BarrierWait(x_full + static_cast<uint32_t>(chunk) / kQ2PieceChunks * 8, 0);
  }

  // The warp's share of tiles in shared memory: after the butterfly's first step.
  template <int kTiles>
  __device__ __forceinline__ void Multiply(const uint32_t (&tiles)[kTiles],
                                           const Q8Fragments<kXShared>& x, bool x_arrives,
                                           Sums<kTiles>& pair) const {
    const Q2ImmaWalk& walk = p.walk;
    // Adding what is 0 keeps the compiler from making the four constants anew for every step. With
    // x in device memory there are no registers for that.
    const int m = kXShared ? p.m : 0;
    const int starts[4] = {kRounderBits + (m >> 27), kRounderBits + (m >> 28),
                           kUpperStart + (m >> 29), kUpperStart + (m >> 30)};
    ForEach<kTiles>([&](int i, int c, int e) { pair[i][c][e] = 0; });
#pragma unroll 1
    for (int of_pair = 0; of_pair < 2; ++of_pair) {
      // Virtual threads l, l + 32, l + 64 and l + 96 of a lane l, one after the other.
      Sums<kTiles> of_lane = {};
      int own = warp + of_pair * kQ2ImmaWarps;
      uint32_t codes_at = first_codes + of_pair * kQ2ImmaWarps * kQ2ChunkBytes;
      uint32_t scales_at = first_scales + of_pair * walk.scale_step / 2;
      Q8Fragments<kXShared> own_x = x;
      own_x.Advance(of_pair * kQ2ImmaWarps * kXChunkBytes);
#pragma unroll 1
      for (; own < walk.first_chunks; own += 32) {
        if (x_arrives) WaitForPiece(own);
        Sums<kTiles> v;
        Chunk<true, kTiles>(tiles, codes_at, scales_at, own_x, starts, v);
        if (own < walk.further_chunks) {
          Q8Fragments<kXShared> slab_x = own_x;
          const auto add = [&](int slab, uint32_t to_codes, uint32_t to_scales) {
            if (x_arrives) WaitForPiece(own + slab * kQ2SlabChunks);
            slab_x.Advance(kQ2SlabChunks * kXChunkBytes);
            Chunk<false, kTiles>(tiles, codes_at + to_codes, scales_at + to_scales, slab_x, starts,
                                 v);
          };
          if constexpr (kXShared) {
            uint32_t at = 0;
#pragma unroll 1
            for (int slab = 1; slab < walk.full_slabs; ++slab) {
              at += walk.slab_bytes;
              add(slab, at, at);
            }
            if (own < walk.last_chunks) add(walk.full_slabs, last_codes, last_scales);
          } else {  // no registers for both
            const int slabs = walk.full_slabs + (own < walk.last_chunks ? 1 : 0);
#pragma unroll 1
            for (int slab = 1; slab < slabs; ++slab) {
              const bool last = slab == walk.full_slabs;
              const uint32_t at = slab * walk.slab_bytes;
              add(slab, last ? last_codes : at, last ? last_scales : at);
            }
          }
        }
        codes_at += 32 * kQ2ChunkBytes;
        scales_at += walk.scale_step;
        own_x.Advance(32 * kXChunkBytes);
        Add<kTiles>(v, of_lane);
      }
      Add<kTiles>(of_lane, pair);
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

  // sums: [warp][tile][column tile][element of a thread][lane].
  template <int kTiles>
  __device__ __forceinline__ void Leave(float* buffer, const Sums<kTiles>& pair) const {
    float* const own = buffer + warp * kWarpFloats + lane;
    ForEach<kTiles>([&](int i, int c, int e) {
      own[(i * kColumnTiles + c) * kSumFloats + e * kSpread * 32] = pair[i][c][e];
    });
  }

  // Steps 8, 4, 2, 1 of the butterfly, an output a thread.
  __device__ __forceinline__ void Finish(const float* buffer, int first, int tiles) const {
    constexpr int kOutputs = kQ2TileRows * kQ8ColumnTile;  // of a tile's column tile
    const uint32_t thread = threadIdx.x;
    const int element = static_cast<int>(thread / 32 % 4);
    const int row = static_cast<int>(thread % 32 / 4) + element / 2 * kQ2Pairs;
    const int in_tile = static_cast<int>(thread % 4) * 2 + element % 2;
    const int part = static_cast<int>(thread / kOutputs), i = part / kColumnTiles;
    const int column = first_column + (part % kColumnTiles * kQ8ColumnTile + in_tile) / kSpread;
    if (i >= tiles || in_tile % kSpread != 0 || column >= p.m) return;
    const float* const from = buffer + thread;
    float eight[8], four[4];
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      eight[w] = __fadd_rn(from[w * kWarpFloats], from[(w + 8) * kWarpFloats]);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) four[w] = __fadd_rn(eight[w], eight[w + 4]);
    const float sum = __fadd_rn(__fadd_rn(four[0], four[2]), __fadd_rn(four[1], four[3]));
    const int tile = first_tile + first + i;
    const Q2Target& target = p.TargetOf(tile);
    const int64_t n = int64_t{tile - target.first_tile} * kQ2TileRows + row;
    if (n < target.n) StoreResult(target.y, p.y_f32, column * target.y_pitch + n, sum);
  }

  template <int kTiles>
  __device__ __forceinline__ void Meet(int step, int tiles, const Sums<kTiles>& pair) const {
    // With two buffers nobody can still be reading the one that is written: its readers had to come
    // to the barrier of the step between.
    float* buffer = sums;
    if (p.plan.sum_buffers == 2) {
      buffer += step % 2 * kQ2ImmaWarps * kWarpFloats;
    } else {
      Together(1);
    }
    Leave<kTiles>(buffer, pair);
    Together(2);
    Finish(buffer, step * kStepTiles, tiles);
  }

  // A thread of its own brings the weights by bulk copies. The first tiles are asked for before
  // anything else; x, which everybody waits for, before the rest.
  __device__ __forceinline__ void Produce() const {
    const uint64_t policy = ReadOnce();
    const uint32_t ring = SharedAddress(shared);
    const auto ask = [&](int i, int stage) {
      BarrierExpect(full + 8 * stage, p.tile_bytes);
      BulkCopy(ring + stage * p.tile_bytes, Tile(i), p.tile_bytes, full + 8 * stage, policy);
    };
    const int stages = p.plan.stages, first = min(kStepTiles, tile_count);
    if (lane == 0) {
      for (int i = 0; i < stages; ++i) {
        BarrierInit(full + 8 * i, 1);
        BarrierInit(empty + 8 * i, kQ2ImmaWarps);
      }
      for (int i = 0; i < p.plan.x_pieces; ++i) BarrierInit(x_full + 8 * i, 1);
      BarriersReady();
      for (int i = 0; i < first; ++i) ask(i, i);
    }
    __syncwarp();
    __syncthreads();
    if (lane != 0) return;
    if (kXShared && !p.plan.fused) {
      WaitForPreviousGrid();
      for (int part = 0; part < 8; ++part) {  // even pieces, then odd ones, see Multiply
        for (int i = part % 4 * 2 + part / 4; i < p.plan.x_pieces; i += 8) {
          const int at = i * kQ2PieceChunks * kXChunkBytes;
          const int bytes = min(kQ2PieceChunks * kXChunkBytes, p.plan.x_bytes - at);
          BarrierExpect(x_full + 8 * i, bytes);
          BulkCopy(SharedAddress(shared_x) + at, DeviceX() + at, bytes, x_full + 8 * i, policy);
        }
      }
    }
    int i = first;
    for (; i < min(stages, tile_count); ++i) ask(i, i);
    Ring at;
    for (; i < tile_count; ++i) {
      BarrierWait(empty + 8 * at.stage, at.phase);
      ask(i, at.stage);
      at.Next(stages);
    }
  }

  template <int kTiles>
  __device__ __forceinline__ void Step(int done, int step, const Q8Fragments<kXShared>& x,
                                       bool x_arrives, Ring& at) const {
    const uint32_t ring = SharedAddress(shared);
    const int tiles = min(kTiles, tile_count - done);
    // Where there are fewer, a product is made again and left.
    uint32_t where[kTiles], used[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (i < tiles) {
        BarrierWait(full + 8 * at.stage, at.phase);
        used[i] = empty + 8 * at.stage;
        where[i] = ring + at.stage * p.tile_bytes;
        at.Next(p.plan.stages);
      } else {
        where[i] = where[0];
      }
    }
    Sums<kTiles> pair;
    Multiply<kTiles>(where, x, x_arrives, pair);
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        if (i < tiles) BarrierArrive(used[i]);
      }
    }
    Meet<kTiles>(step, tiles, pair);
  }

  __device__ __forceinline__ void RunStreaming() const {
    if (warp == kQ2ImmaWarps) {
      Produce();
      return;
    }
    WaitForPreviousGrid();
    if constexpr (kXShared && kColumnTiles == 1) {
      Q2FusedRows<kSpread> rows(p, warp, lane);
      if (p.plan.fused) rows.LoadFirst();
      __syncthreads();
      if (p.plan.fused) rows.Quantise(shared_x);
    } else {
      __syncthreads();
    }
    const Q8Fragments<kXShared> x = X();
    Ring at;
    int done = 0, step = 0;
    for (; done + (kStepTiles > 1) < tile_count; done += kStepTiles, ++step) {
      Step<kStepTiles>(done, step, x, kXShared && step == 0 && !p.plan.fused, at);
    }
    // Of a last tile alone no more is made.
    if (done < tile_count) Step<1>(done, step, x, kXShared && step == 0 && !p.plan.fused, at);
  }

  // Without bulk copies all threads bring the tiles of a step, in 16-byte loads.
  __device__ __forceinline__ void Bring(std::byte* to, const std::byte* from, int bytes) const {
    for (int at = static_cast<int>(threadIdx.x) * 16; at < bytes; at += kQ2ImmaThreads * 16) {
      *reinterpret_cast<uint4*>(to + at) = __ldg(reinterpret_cast<const uint4*>(from + at));
    }
  }
  __device__ __forceinline__ void RunCopying() const {
    if constexpr (kXShared) {
      bool fused = false;
      if constexpr (kColumnTiles == 1) fused = p.plan.fused;
      if (!fused) {
        Bring(shared_x, DeviceX(), p.plan.x_bytes);
      } else {
        Q2FusedRows<kSpread> rows(p, warp, lane);
        rows.LoadFirst();
        rows.Quantise(shared_x);
      }
    }
    const Q8Fragments<kXShared> x = X();
    for (int done = 0, step = 0; done < tile_count; done += kStepTiles, ++step) {
      const int tiles = min(kStepTiles, tile_count - done);
      __syncthreads();  // the step before has read its tiles
      for (int i = 0; i < tiles; ++i)
        Bring(shared + i * p.tile_bytes, Tile(done + i), p.tile_bytes);
      __syncthreads();
      const uint32_t ring = SharedAddress(shared);
      uint32_t where[kStepTiles];
#pragma unroll
      for (int i = 0; i < kStepTiles; ++i) where[i] = ring + min(i, tiles - 1) * p.tile_bytes;
      Sums<kStepTiles> pair;
      Multiply<kStepTiles>(where, x, false, pair);
      Meet<kStepTiles>(step, tiles, pair);
    }
  }
};

template <int kColumnTiles, int kSpread, bool kXShared>
__global__ void __launch_bounds__(kQ2ImmaThreads, 1)
    Q2ImmaKernel(const __grid_constant__ Q2ImmaArgs p) {
  extern __shared__ __align__(128) std::byte shared[];
  LetNextGridStart();
  const int group = p.by_column_groups(static_cast<int>(blockIdx.x));
  const int column_group = static_cast<int>(blockIdx.x) - group * p.plan.column_groups;
  const Q2ImmaProduct<kColumnTiles, kSpread, kXShared> product(p, shared, group, column_group);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  product.RunStreaming();
#else
  product.RunCopying();
#endif
}

}  // namespace fulcrum::cuda

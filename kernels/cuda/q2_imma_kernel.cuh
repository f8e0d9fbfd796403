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
// A chunk's integer sum is one m16n8k32 step that starts from kRounderBits, so that its bits are a
// float already (q8_chunk.cuh): an element's term costs a subtraction, two multiplications and an
// addition.
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
  static constexpr int kWarpFloats = kQ2StepTiles * kColumnTiles * kSumFloats;
  using Sums = float[kQ2StepTiles][kColumnTiles][kElements];

  const Q2ImmaArgs& p;
  const int lane, warp, first_column, first_tile, tile_count;
  // Where in a tile the thread finds its word of the warp's first chunk, and the pair's scales.
  const uint32_t first_codes, first_scales;
  std::byte* const shared;  // the ring; then x, sums, barriers
  std::byte* const shared_x;
  float* const sums;
  const uint32_t full, empty, x_full;

  __device__ __forceinline__ Q2ImmaProduct(const Q2ImmaArgs& args, std::byte* memory, int group,
                                           int column_group)
      : p(args),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        first_column(column_group * kColumnTiles * kQ8ColumnTile),
        first_tile(group * p.plan.group_tiles + min(group, p.plan.longer_groups)),
        tile_count(p.plan.group_tiles + (group < p.plan.longer_groups ? 1 : 0)),
        first_codes(lane / 4 * p.code_pitch + warp * kQ2ChunkBytes + lane % 4 * 4),
        first_scales(p.scales_at + lane / 4 * p.scale_pitch + (warp >> p.layout.scale_shift) * 4),
        shared(memory),
        shared_x(memory + p.plan.x_at),
        sums(reinterpret_cast<float*>(memory + p.plan.sums_at)),
        full(SharedAddress(memory) + p.plan.barriers_at),
        empty(full + p.plan.stages * 8),
        x_full(empty + p.plan.stages * 8) {}

  __device__ __forceinline__ const std::byte* Tile(int i) const {
    const Q2Target& target = p.TargetOf(first_tile + i);
    return target.tiles + int64_t{first_tile + i - target.first_tile} * p.tile_bytes;
  }
  // The thread block's columns of x, in device memory.
  __device__ __forceinline__ const std::byte* DeviceX() const {
    return p.x + first_column / kQ8ColumnTile * Q8FragmentTileBytes(p.layout.chunks);
  }
  // From the warp's first chunk on.
  __device__ __forceinline__ Q8Fragments<kXShared> X() const {
    Q8Fragments<kXShared> x(SharedAddress(shared_x), kXShared ? nullptr : DeviceX(), lane);
    x.Advance(warp * kQ8FragmentBytes);
    return x;
  }
  // Waits for whole warps of those that multiply.
  __device__ __forceinline__ void Together(int id) const { NamedBarrier(id, kQ2ImmaWarps * 32); }

  // The first chunk of a virtual thread, or a further one, times two tiles.
  template <bool kFirst>
  __device__ __forceinline__ void Chunk(const uint32_t (&tiles)[kQ2StepTiles], uint32_t codes_at,
                                        uint32_t scales_at, const Q8Fragments<kXShared>& x,
                                        const int (&starts)[4], Sums& v) const {
    uint32_t words[kQ2StepTiles], scales[kQ2StepTiles];
#pragma unroll
    for (int i = 0; i < kQ2StepTiles; ++i) {
      words[i] = SharedLoadWord(tiles[i] + codes_at);
      scales[i] = SharedLoadWord(tiles[i] + scales_at);
    }
    uint32_t codes[kQ2StepTiles][4];
    float2 d2[kQ2StepTiles];
#pragma unroll
    for (int i = 0; i < kQ2StepTiles; ++i) {
      Spread(words[i], codes[i]);
      d2[i] = __half22float2(*reinterpret_cast<const __half2*>(&scales[i]));
    }
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      const int at = c * p.layout.chunks * kQ8FragmentBytes;
      const uint2 q = x.Words(at);
      const uint4 constants = x.Constants(at);
      const float offset[2] = {__uint_as_float(constants.x), __uint_as_float(constants.y)};
      const float d8[2] = {__uint_as_float(constants.z), __uint_as_float(constants.w)};
#pragma unroll
      for (int i = 0; i < kQ2StepTiles; ++i) {
        int integers[4];
        Imma(integers, codes[i], q, starts);
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const int element = e * kSpread;
          const float s = __fsub_rn(__int_as_float(integers[element]), offset[element % 2]);
          const float d = __fmul_rn(element < 2 ? d2[i].x : d2[i].y, d8[element % 2]);
          // Adding the first to +0 differs from not adding it in the sign of a zero, which the sums
          // below, from +0 too, do not keep.
          v[i][c][e] = kFirst ? __fmul_rn(d, s) : __fmaf_rn(d, s, v[i][c][e]);
        }
      }
    }
  }

  // The warp's share of two tiles in shared memory: after the butterfly's first step.
  __device__ __forceinline__ void Multiply(const uint32_t (&tiles)[kQ2StepTiles],
                                           const Q8Fragments<kXShared>& x, Sums& pair) const {
    const Q2Layout& layout = p.layout;
    // Adding what is 0 keeps the compiler from making the four constants anew for every step. With
    // x in device memory there are no registers for that.
    const int m = kXShared ? p.m : 0;
    const int starts[4] = {kRounderBits + (m >> 27), kRounderBits + (m >> 28),
                           kRounderBits + (m >> 29), kRounderBits + (m >> 30)};
#pragma unroll 1
    for (int of_pair = 0; of_pair < 2; ++of_pair) {
      // Virtual threads l, l + 32, l + 64 and l + 96 of a lane l, one after the other.
      Sums of_lane = {};
      int own = warp + of_pair * kQ2ImmaWarps;
      uint32_t codes_at = first_codes + of_pair * kQ2ImmaWarps * kQ2ChunkBytes;
      uint32_t scales_at = first_scales + of_pair * p.scale_step / 2;
      Q8Fragments<kXShared> own_x = x;
      own_x.Advance(of_pair * kQ2ImmaWarps * kQ8FragmentBytes);
#pragma unroll 1
      for (; own < p.first_chunks; own += 32) {
        Sums v;
        Chunk<true>(tiles, codes_at, scales_at, own_x, starts, v);
        if (own < p.second_chunks) {
          Q8Fragments<kXShared> slab_x = own_x;
          int slab = 1, slab_chunks = p.second_chunks;
#pragma unroll 1
          do {
            const int pitch = Q2Layout::CodePitch(slab_chunks), g = lane / 4;
            const uint32_t at = layout.SlabOffset(slab);
            slab_x.Advance(kQ2SlabChunks * kQ8FragmentBytes);
            Chunk<false>(tiles, at + g * pitch + own * kQ2ChunkBytes + lane % 4 * 4,
                         at + kQ2Pairs * pitch + g * layout.ScalePitch(slab_chunks) +
                             (own >> layout.scale_shift) * 4,
                         slab_x, starts, v);
            ++slab;
            slab_chunks = layout.SlabChunks(slab);  // none after the last
          } while (own < slab_chunks);
        }
        codes_at += 32 * kQ2ChunkBytes;
        scales_at += p.scale_step;
        own_x.Advance(32 * kQ8FragmentBytes);
        Add(v, of_lane);
      }
      if (of_pair == 0) {
        ForEach([&](int i, int c, int e) { pair[i][c][e] = of_lane[i][c][e]; });
      } else {
        Add(of_lane, pair);
      }
    }
  }

  template <class Use>
  __device__ __forceinline__ static void ForEach(const Use& use) {
#pragma unroll
    for (int i = 0; i < kQ2StepTiles; ++i) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) use(i, c, e);
      }
    }
  }
  __device__ __forceinline__ static void Add(const Sums& more, Sums& sums) {
    ForEach([&](int i, int c, int e) { sums[i][c][e] = __fadd_rn(sums[i][c][e], more[i][c][e]); });
  }

  // sums: [warp][tile][column tile][column][16 rows].
  __device__ __forceinline__ void Leave(float* buffer, const Sums& pair) const {
    const int g = lane / 4, t = lane % 4;
    float* const own = buffer + warp * kWarpFloats + 2 * t * kQ2SumColumnPitch + g;
    ForEach([&](int i, int c, int e) {
      const int element = e * kSpread;
      own[(i * kColumnTiles + c) * kSumFloats + element % 2 * kQ2SumColumnPitch +
          element / 2 * kQ2Pairs] = pair[i][c][e];
    });
  }

  // Steps 8, 4, 2, 1 of the butterfly, an output a thread.
  __device__ __forceinline__ void Finish(const float* buffer, int first, int tiles) const {
    constexpr int kOutputs = kQ2TileRows * kQ8ColumnTile;  // of a tile's column tile
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread % kQ2TileRows, in_tile = thread / kQ2TileRows % kQ8ColumnTile;
    const int part = thread / kOutputs, i = part / kColumnTiles;
    const int column = first_column + (part % kColumnTiles * kQ8ColumnTile + in_tile) / kSpread;
    if (i >= tiles || in_tile % kSpread != 0 || column >= p.m) return;
    const float* const from = buffer + part * kSumFloats + in_tile * kQ2SumColumnPitch + row;
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

  __device__ __forceinline__ void Meet(int step, int tiles, const Sums& pair) const {
    // With two buffers nobody can still be reading the one that is written: its readers had to come
    // to the barrier of the step between.
    float* buffer = sums;
    if (p.plan.sum_buffers == 2) {
      buffer += step % 2 * kQ2ImmaWarps * kWarpFloats;
    } else {
      Together(1);
    }
    Leave(buffer, pair);
    Together(2);
    Finish(buffer, step * kQ2StepTiles, tiles);
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
    const int stages = p.plan.stages, first = min(kQ2StepTiles, tile_count);
    if (lane == 0) {
      for (int i = 0; i < stages; ++i) {
        BarrierInit(full + 8 * i, 1);
        BarrierInit(empty + 8 * i, kQ2ImmaWarps);
      }
      BarrierInit(x_full, 1);
      BarriersReady();
      for (int i = 0; i < first; ++i) ask(i, i);
    }
    __syncwarp();
    __syncthreads();
    if (lane != 0) return;
    if (kXShared && !p.plan.fused) {
      WaitForPreviousGrid();
      BarrierExpect(x_full, p.plan.x_bytes);
      BulkCopy(SharedAddress(shared_x), DeviceX(), p.plan.x_bytes, x_full, policy);
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
      if (p.plan.fused) {
        rows.Quantise(shared_x);
      } else {
        BarrierWait(x_full, 0);
      }
    } else {
      __syncthreads();
      if constexpr (kXShared) BarrierWait(x_full, 0);
    }
    const Q8Fragments<kXShared> x = X();
    const uint32_t ring = SharedAddress(shared);
    Ring at;
    for (int done = 0, step = 0; done < tile_count; done += kQ2StepTiles, ++step) {
      const int tiles = min(kQ2StepTiles, tile_count - done);
      // Of a last tile alone the second product is made of it again and left.
      uint32_t where[kQ2StepTiles], used[kQ2StepTiles];
#pragma unroll
      for (int i = 0; i < kQ2StepTiles; ++i) {
        if (i < tiles) {
          BarrierWait(full + 8 * at.stage, at.phase);
          used[i] = empty + 8 * at.stage;
          where[i] = ring + at.stage * p.tile_bytes;
          at.Next(p.plan.stages);
        } else {
          where[i] = where[0];
        }
      }
      Sums pair;
      Multiply(where, x, pair);
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int i = 0; i < kQ2StepTiles; ++i) {
          if (i < tiles) BarrierArrive(used[i]);
        }
      }
      Meet(step, tiles, pair);
    }
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
    for (int done = 0, step = 0; done < tile_count; done += kQ2StepTiles, ++step) {
      const int tiles = min(kQ2StepTiles, tile_count - done);
      __syncthreads();  // the step before has read its tiles
      for (int i = 0; i < tiles; ++i)
        Bring(shared + i * p.tile_bytes, Tile(done + i), p.tile_bytes);
      __syncthreads();
      const uint32_t ring = SharedAddress(shared);
      const uint32_t where[kQ2StepTiles] = {ring, ring + (tiles - 1) * p.tile_bytes};
      Sums pair;
      Multiply(where, x, pair);
      Meet(step, tiles, pair);
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

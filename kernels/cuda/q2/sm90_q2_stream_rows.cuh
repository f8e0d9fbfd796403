// Class exact for q2_0 (order.h), few rows of x, where there are bulk copies: Q2WarpRows' work (see
// q2_lanes.cuh) on tiles that come one after the other into a ring in shared memory, and on x that
// each thread block quantises itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/cuda/device/fast_divmod.cuh"
#include "kernels/cuda/device/force_in_register.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/pipeline_state.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/q2/q2_lanes.cuh"

namespace fulcrum::cuda {

// Three tiles are worked on at a time, each by warps of a few of its rows; one more warp asks for
// tiles.
inline constexpr int kQ2StreamTiles = 3;
// A warp's pairs of rows. One, so twice the warps, pays where virtual threads have more than a
// chunk and x is not read too often for it (measured on an H200: K = 2560 and 5120).
constexpr int Q2StreamPairs(int columns, int chunks) {
  return columns <= 2 && chunks > kQ2Threads ? 1 : 2;
}
constexpr int Q2StreamThreads(int pairs) { return (kQ2StreamTiles * kQ2Pairs / pairs + 1) * 32; }

struct Q2StreamRows {
  Q2LaneProduct product;  // its x is not used
  const uint16_t* rows;   // BF16 [m][pitch]
  int64_t pitch;
  int tile_bytes;
  int group_tiles, longer_groups;  // tiles of a thread block; so many have one more
  // Tiles in shared memory, a multiple of those worked on: then a place in the ring is always the
  // same warps', and whoever waits for it has seen all that was there before.
  int stages;
  int x_at, barriers_at, shared_bytes;  // after the tiles: x as QuantiseForLanes lays it out
  int thread_blocks;
  FastDivmod by_chunks = FastDivmod(1);

  // Whether it fits; sets what the plan decides.
  bool Plan(int tiles, int multiprocessors, int max_shared_bytes) {
    thread_blocks = std::min(tiles, multiprocessors);
    group_tiles = tiles / thread_blocks;
    longer_groups = tiles % thread_blocks;
    for (stages = 2 * kQ2StreamTiles; stages > 0; stages -= kQ2StreamTiles) {
      x_at = stages * tile_bytes;
      barriers_at = x_at + product.m * static_cast<int>(Q8LaneRowBytes(product.layout.chunks));
      shared_bytes = barriers_at + stages * 16;
      if (shared_bytes <= max_shared_bytes) return true;
    }
    return false;
  }
};

// A chunk of kPairs pairs of rows in shared memory times x, also there.
template <int kPairs, int kColumns>
__device__ __forceinline__ void AddSharedChunk(uint32_t codes_at, int code_pitch,
                                               uint32_t scales_at, int scale_pitch, uint32_t x,
                                               uint32_t constants_at, int chunks,
                                               float (&v)[2 * kPairs][kColumns]) {
  uint32_t codes[kPairs][4][4];  // [pair][word][register of q2_layout.h]
  float scales[2 * kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const uint4 four = SharedLoad(codes_at + i * code_pitch);
    const uint32_t scale = SharedLoad32(scales_at + i * scale_pitch);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int t = 0; t < 4; ++t) Spread(words[t], codes[i][t]);
    const float2 d2 = __half22float2(*reinterpret_cast<const __half2*>(&scale));
    scales[2 * i] = d2.x;
    scales[2 * i + 1] = d2.y;
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int row_at = c * chunks * kQ8LaneChunkBytes;
    const uint4 first = SharedLoad(x + row_at), second = SharedLoad(x + (row_at + chunks * 16));
    const uint2 constants = SharedLoad64(constants_at + row_at);
    const float offset = __uint_as_float(constants.x), d8 = __uint_as_float(constants.y);
    const float offsets[2] = {offset, FineOffset(offset)};
    const uint32_t q[8] = {first.x,  first.y,  first.z,  first.w,
                           second.x, second.y, second.z, second.w};
#pragma unroll
    for (int row = 0; row < 2 * kPairs; ++row) {
      int sum = row % 2 == 0 ? kRounderBits : kFineRounderBits;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum = __dp4a(static_cast<int>(codes[row / 2][i / 2][2 * (i % 2) + row % 2]),
                     static_cast<int>(q[i]), sum);
      }
      const float s = __fsub_rn(__int_as_float(sum), offsets[row % 2]);
      v[row][c] = __fmaf_rn(__fmul_rn(scales[row], d8), s, v[row][c]);
    }
  }
}

// Eight chunks a warp and pass, four lanes each; two passes' values are asked for ahead.
template <int kWarps>
__device__ __forceinline__ void QuantiseToShared(const Q2StreamRows& p, int warp, int lane,
                                                 std::byte* x) {
  constexpr int kPass = kWarps * 8;
  const int chunks = p.product.layout.chunks, items = chunks * p.product.m;
  const auto load = [&](int item) {
    if (item >= items) return make_uint4(0, 0, 0, 0);
    const int row = p.by_chunks(item), chunk = item - row * chunks;
    const uint16_t* const at = p.rows + row * p.pitch + chunk * kQ2ChunkK + lane % 4 * 8;
    return *reinterpret_cast<const uint4*>(at);  // plain, see q8_rows.cu
  };
  int item = warp * 8 + lane / 4;
  uint4 next[2] = {load(item), load(item + kPass)};
#pragma unroll 1
  for (int first = warp * 8; first < items; first += kPass, item += kPass) {
    const uint4 eight = next[0];
    next[0] = next[1];
    next[1] = load(item + 2 * kPass);
    const Q8Part part = QuantisePart(eight);
    if (item >= items) continue;
    const int row = p.by_chunks(item), chunk = item - row * chunks, t = lane % 4;
    std::byte* const own = x + row * chunks * kQ8LaneChunkBytes;
    *reinterpret_cast<uint2*>(own + (t / 2 * chunks + chunk) * 16 + t % 2 * 8) =
        make_uint2(part.low, part.high);
    if (t == 0) {
      *reinterpret_cast<float2*>(own + chunks * 32 + chunk * 8) =
          make_float2(part.offset, part.scale);
    }
  }
}

template <int kColumns, int kPairs>
__global__ void __launch_bounds__(Q2StreamThreads(kPairs), 1)
    Sm90Q2StreamRowsKernel(const __grid_constant__ Q2StreamRows p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  LaunchDependentGrids();
  constexpr int kRows = 2 * kPairs;
  constexpr int kTileWarps = kQ2Pairs / kPairs, kWarps = kQ2StreamTiles * kTileWarps;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int group = static_cast<int>(blockIdx.x);
  const int first_tile = group * p.group_tiles + min(group, p.longer_groups);
  const int tile_count = p.group_tiles + (group < p.longer_groups ? 1 : 0);
  const uint32_t ring = SharedAddress(shared);
  const uint32_t full = ring + p.barriers_at, empty = full + p.stages * 8;
  if (warp == kWarps) {
    const uint64_t policy = EvictFirstPolicy();
    const auto ask = [&](int i, int stage) {
      MbarrierArriveExpectTx(full + 8 * stage, p.tile_bytes);
      BulkCopy(ring + stage * p.tile_bytes,
               p.product.tiles + int64_t{first_tile + i} * p.tile_bytes, p.tile_bytes,
               full + 8 * stage, policy);
    };
    int i = 0;
    if (lane == 0) {
      for (int stage = 0; stage < p.stages; ++stage) {
        MbarrierInit(full + 8 * stage, 1);
        MbarrierInit(empty + 8 * stage, kTileWarps);
      }
      MbarrierInitFence();
      for (; i < min(p.stages, tile_count); ++i) ask(i, i);
    }
    __syncwarp();
    __syncthreads();
    if (lane != 0) return;
    for (PipelineState at; i < tile_count; ++i, at.Advance(p.stages)) {
      MbarrierWait(empty + 8 * at.stage, at.parity);
      ask(i, at.stage);
    }
    return;
  }
  WaitOnDependentGrids();
  QuantiseToShared<kWarps>(p, warp, lane, shared + p.x_at);
  __syncthreads();
  const int first_pair = warp % kTileWarps * kPairs;
  const Q2Layout& layout = p.product.layout;
  const int chunks = layout.chunks;
  // Where the lane's first chunk is in a tile, and in x.
  uint32_t first_codes = layout.CodesAt(first_pair, lane);
  uint32_t first_scales = layout.ScalesAt(first_pair, lane);
  uint32_t first_x = ring + p.x_at + lane * 16;
  uint32_t first_constants = ring + p.x_at + chunks * 32 + lane * 8;
  ForceInRegister(first_codes);
  ForceInRegister(first_scales);
  ForceInRegister(first_x);
  ForceInRegister(first_constants);
  int stage = warp / kTileWarps;
  uint32_t parity = 0;
#pragma unroll 1
  for (int i = stage; i < tile_count; i += kQ2StreamTiles) {
    MbarrierWait(full + 8 * stage, parity);
    float sums[kRows][kColumns] = {};
    const uint32_t tile = ring + stage * p.tile_bytes;
    uint32_t codes_at = tile + first_codes, scales_at = tile + first_scales;
    uint32_t x = first_x, constants_at = first_constants;
#pragma unroll 1
    for (int own = lane; own < kQ2Threads; own += 32) {
      // Virtual threads that own nothing hold +0.
      float v[kRows][kColumns] = {};
      uint32_t v_codes = codes_at, v_scales = scales_at, v_x = x, v_constants = constants_at;
#pragma unroll 1
      for (int chunk = own; chunk < chunks; chunk += kQ2Threads) {
        AddSharedChunk<kPairs, kColumns>(v_codes, layout.code_pitch, v_scales, layout.scale_pitch,
                                         v_x, v_constants, chunks, v);
        v_codes += kQ2Threads / 2 * kQ2ChunkBytes;
        v_scales += (kQ2Threads >> layout.scale_shift) * 4;
        v_x += kQ2Threads * 16;
        v_constants += kQ2Threads * 8;
      }
      codes_at += 32 / 2 * kQ2ChunkBytes;
      scales_at += (32 >> layout.scale_shift) * 4;
      x += 32 * 16;
      constants_at += 32 * 8;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[row][c] = __fadd_rn(sums[row][c], v[row][c]);
      }
    }
    __syncwarp();
    if (lane == 0) MbarrierArrive(empty + 8 * stage);
    stage += kQ2StreamTiles;
    if (stage >= p.stages) {
      stage -= p.stages;
      parity ^= 1;
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[row][c] = Butterfly(sums[row][c]);
    }
    StoreFromLanes<kRows, kColumns>(p.product, first_tile + i, first_pair, sums);
  }
#endif
}

}  // namespace fulcrum::cuda

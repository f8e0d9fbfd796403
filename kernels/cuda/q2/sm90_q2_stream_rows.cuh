// Class exact for q2_0 (order.h) on sm_90 and later, one to four rows of x: the work of Q2WarpRows
// (see q2_lanes.cuh) on tiles that bulk copies bring, one after the other, into a ring in shared
// memory. Each thread block quantises x itself.
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

// Three tiles are computed at a time, each by warps that have a few of its rows. One more warp
// copies.
inline constexpr int kQ2StreamTiles = 3;
// Pairs of rows of a warp. One pair, and so twice the warps, is faster where virtual threads have
// more than one chunk and x is not read too often (measured on an H200 at K = 2560 and 5120).
constexpr int Q2StreamPairs(int columns, int chunks) {
  return columns <= 2 && chunks > kQ2Threads ? 1 : 2;
}
constexpr int Q2StreamThreads(int pairs) { return (kQ2StreamTiles * kQ2Pairs / pairs + 1) * 32; }

struct Q2StreamRows {
  Q2LaneProduct product;  // its x is not used
  const uint16_t* rows;   // BF16 [m][pitch]
  int64_t pitch;
  int tile_bytes;
  int group_tiles, longer_groups;  // tiles of a thread block; longer_groups blocks have one more
  // Tiles in shared memory, a multiple of kQ2StreamTiles. So a stage always belongs to the same
  // warps, and a warp that waits for it has read what was there before.
  int stages;
  int x_at, barriers_at, shared_bytes;  // after the tiles: x as QuantiseForLanes lays it out
  int thread_blocks;
  FastDivmod by_chunks = FastDivmod(1);

  // Computes sizes and offsets; false where shared memory does not suffice.
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

// A pass of a warp quantises eight chunks, four lanes each. Values are loaded two passes ahead.
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
struct Sm90Q2StreamRows {
  static constexpr int kRows = 2 * kPairs;
  static constexpr int kTileWarps = kQ2Pairs / kPairs;  // warps of a tile
  static constexpr int kWarps = kQ2StreamTiles * kTileWarps;
  using Sums = float[kRows][kColumns];
  static_assert(kQ2Pairs % kPairs == 0, "warps have whole pairs of a tile's rows");
  static_assert(kRows * kColumns <= 32, "a lane stores each of a warp's values");
  static_assert(kQ2Threads % 32 == 0, "a lane plays as many virtual threads as any other");

  const Q2StreamRows& p;
  std::byte* const shared;  // tiles, x, barriers
  const int lane, warp;
  const int first_tile, tile_count;  // of the thread block
  const uint32_t ring, full, empty;

  __device__ __forceinline__ Sm90Q2StreamRows(const Q2StreamRows& params, std::byte* memory,
                                              int group)
      : p(params),
        shared(memory),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0)),
        first_tile(group * p.group_tiles + min(group, p.longer_groups)),
        tile_count(p.group_tiles + (group < p.longer_groups ? 1 : 0)),
        ring(SharedAddress(memory)),
        full(ring + p.barriers_at),
        empty(full + p.stages * 8) {}

  __device__ __forceinline__ void Copy(int i, int stage, uint64_t policy) const {
    MbarrierArriveExpectTx(full + 8 * stage, p.tile_bytes);
    BulkCopy(ring + stage * p.tile_bytes, p.product.tiles + int64_t{first_tile + i} * p.tile_bytes,
             p.tile_bytes, full + 8 * stage, policy);
  }
  // Copying warp: one thread fills the ring before the thread block synchronises, and then each
  // stage that becomes free.
  __device__ __forceinline__ void Produce() const {
    const uint64_t policy = EvictFirstPolicy();
    int i = 0;
    if (lane == 0) {
      for (int stage = 0; stage < p.stages; ++stage) {
        MbarrierInit(full + 8 * stage, 1);
        MbarrierInit(empty + 8 * stage, kTileWarps);
      }
      MbarrierInitFence();
      for (; i < min(p.stages, tile_count); ++i) Copy(i, i, policy);
    }
    __syncwarp();
    __syncthreads();
    if (lane != 0) return;
    for (PipelineState at; i < tile_count; ++i, at.Advance(p.stages)) {
      MbarrierWait(empty + 8 * at.stage, at.parity);
      Copy(i, at.stage, policy);
    }
  }

  // Where a lane's first chunk is: codes and scales from the begin of a tile, x and its constants
  // in shared memory.
  struct FirstChunk {
    uint32_t codes, scales, x, constants;
  };

  // Computing warp: its rows of every third tile.
  __device__ __forceinline__ void Compute() const {
    WaitOnDependentGrids();
    QuantiseToShared<kWarps>(p, warp, lane, shared + p.x_at);
    __syncthreads();
    const int first_pair = warp % kTileWarps * kPairs;
    const Q2Layout& layout = p.product.layout;
    FirstChunk first = {
        .codes = static_cast<uint32_t>(layout.CodesAt(first_pair, lane)),
        .scales = static_cast<uint32_t>(layout.ScalesAt(first_pair, lane)),
        .x = ring + p.x_at + lane * 16,
        .constants = ring + p.x_at + layout.chunks * 32 + lane * 8,
    };
    ForceInRegister(first.codes), ForceInRegister(first.scales);
    ForceInRegister(first.x), ForceInRegister(first.constants);
    int stage = warp / kTileWarps;
    uint32_t parity = 0;
#pragma unroll 1
    for (int i = stage; i < tile_count; i += kQ2StreamTiles) {
      MbarrierWait(full + 8 * stage, parity);
      Sums sums = {};
      SumTile(ring + stage * p.tile_bytes, first, sums);
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
  }

  // The lane's virtual threads, one after the other. Those that own no chunk hold +0.
  __device__ __forceinline__ void SumTile(uint32_t tile, const FirstChunk& first,
                                          Sums& sums) const {
    const Q2Layout& layout = p.product.layout;
    const int chunks = layout.chunks;
    uint32_t codes_at = tile + first.codes, scales_at = tile + first.scales;
    uint32_t x = first.x, constants_at = first.constants;
#pragma unroll 1
    for (int own = lane; own < kQ2Threads; own += 32) {
      Sums v = {};
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
  }
};

template <int kColumns, int kPairs>
__global__ void __launch_bounds__(Q2StreamThreads(kPairs), 1)
    Sm90Q2StreamRowsKernel(const __grid_constant__ Q2StreamRows p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  LaunchDependentGrids();
  const Sm90Q2StreamRows<kColumns, kPairs> rows(p, shared, static_cast<int>(blockIdx.x));
  if (rows.warp == rows.kWarps) {
    rows.Produce();
  } else {
    rows.Compute();
  }
#endif
}

}  // namespace fulcrum::cuda

// How the K segments of one panel, each another thread block's, become one result: everyone leaves
// its sums in the workspace but for those it finishes itself; who finishes waits for the words
// themselves, adds in ascending order, stores the result and leaves the words clean.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/product.cuh"

namespace fulcrum::cuda {

inline constexpr int kWgmmaColumns = 8;  // of one column tile

// Where the sums of (panel of the launch, warp, column tile, segment) meet, a 16-byte word a
// thread.
template <int kTiles>
__device__ __forceinline__ uint4* Meeting(uint4* workspace, const Product& p, int panel, int warp,
                                          int tile, int segment, int lane) {
  return workspace + (((int64_t{panel} * 4 + warp) * kTiles + tile) * p.segments + segment) * 32 +
         lane;
}

__device__ __forceinline__ bool Finishes(const Product& p, int panel, int warp, int tiles, int tile,
                                         int segment) {
  return ((panel * 4 + warp) * tiles + tile) % p.segments == segment;
}

// Leaves a segment's sums of one column tile to whoever finishes it, or finishes what is its own.
template <int kTiles>
__device__ __forceinline__ void Leave(const Product& p, uint4* workspace, const float (&own)[4],
                                      int panel, int warp, int tile, int rank, int lane) {
  if (Finishes(p, panel, warp, kTiles, tile, rank)) return;
  WorkspaceStore(
      Meeting<kTiles>(workspace, p, panel, warp, tile, rank, lane),
      make_uint4(NeverClean(own[0]), NeverClean(own[1]), NeverClean(own[2]), NeverClean(own[3])));
}
template <int kTiles>
__device__ __forceinline__ void Finish(const Product& p, uint4* workspace, const float (&own)[4],
                                       int panel, int first_panel, int warp, int tile, int rank,
                                       int lane) {
  if (!Finishes(p, panel, warp, kTiles, tile, rank)) return;
  constexpr int kTogether = kTiles == 2 ? 2 : 4;  // asked for together, by registers
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
      sum[0] = __fadd_rn(sum[0], mine ? own[0] : __uint_as_float(v[i].x));
      sum[1] = __fadd_rn(sum[1], mine ? own[1] : __uint_as_float(v[i].y));
      sum[2] = __fadd_rn(sum[2], mine ? own[2] : __uint_as_float(v[i].z));
      sum[3] = __fadd_rn(sum[3], mine ? own[3] : __uint_as_float(v[i].w));
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

}  // namespace fulcrum::cuda

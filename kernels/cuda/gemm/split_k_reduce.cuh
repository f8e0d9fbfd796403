// Split-K reduction through the workspace. Thread blocks sum the K segments of a tile separately.
// Each block that does not own the tile stores its partial sums as words that differ from the empty
// sentinel. The owner polls those words, adds the segments in ascending order, stores the result
// and resets the words to the sentinel. So all thread blocks of a launch must be resident at once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/gemm/grouped_gemm.cuh"
#include "kernels/cuda/gemm/workspace.cuh"

namespace fulcrum::cuda {

inline constexpr int kPartialsTogether = 4;    // loads in flight
inline constexpr int kPartialBytes = 32 * 16;  // of one segment of a tile's column tile

// Where a thread's 16 bytes of a partial sum are. tile: counted from the launch's first tile.
template <int kTiles>
__device__ __forceinline__ uint4* PartialAddress(const GroupedGemmParams& p, int tile, int segment,
                                                 int column_tile, int lane) {
  return p.workspace + ((int64_t{tile} * p.segments + segment) * kTiles + column_tile) * 32 + lane;
}

template <int kTiles>
__device__ __forceinline__ void StorePartial(const GroupedGemmParams& p, int tile, int segment,
                                             int column_tile, int lane, const float (&sum)[4]) {
  GlobalStoreRelaxed(PartialAddress<kTiles>(p, tile, segment, column_tile, lane),
                     make_uint4(AvoidSentinel(sum[0]), AvoidSentinel(sum[1]), AvoidSentinel(sum[2]),
                                AvoidSentinel(sum[3])));
}

// The segments [first, end) of a tile and column tile whose sums are in this thread block's shared
// memory: from `at` on, `pitch` bytes apart.
struct LocalPartials {
  int first, end;
  uint32_t at, pitch;
  __device__ __forceinline__ bool Has(int segment) const {
    return segment >= first && segment < end;
  }
  __device__ __forceinline__ float4 Load(int segment) const {
    return SharedLoadF32(at + (segment - first) * pitch);
  }
};

// Called by a whole warp. Partial sums that are not local come from the workspace. This runs once
// or twice at the end of the kernel, on its critical path, in cold code: so it has few instructions
// and reads no special registers.
template <int kTiles>
__device__ __forceinline__ void ReduceTile(const GroupedGemmParams& p, int tile, int column_tile,
                                           int lane, const LocalPartials& here) {
  const int segments = p.segments;
  uint4* const partials = PartialAddress<kTiles>(p, tile, 0, column_tile, lane);
  float sum[4] = {};
  for (int first = 0; first < segments; first += kPartialsTogether) {
    uint4 left[kPartialsTogether];
    bool arrived = false;
    while (!arrived) {
      arrived = true;
#pragma unroll
      for (int i = 0; i < kPartialsTogether; ++i) {
        if (first + i < segments && !here.Has(first + i)) {
          left[i] = GlobalLoadRelaxed(partials + (first + i) * (kTiles * 32));
        }
      }
#pragma unroll
      for (int i = 0; i < kPartialsTogether; ++i) {
        if (first + i < segments && !here.Has(first + i)) {
          arrived = arrived && AllArrived(left[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kPartialsTogether; ++i) {
      const int segment = first + i;
      if (segment >= segments) continue;
      float4 part;
      if (here.Has(segment)) {
        part = here.Load(segment);
      } else {
        part = make_float4(__uint_as_float(left[i].x), __uint_as_float(left[i].y),
                           __uint_as_float(left[i].z), __uint_as_float(left[i].w));
        GlobalStoreRelaxed(
            partials + segment * (kTiles * 32),
            make_uint4(kEmptySentinel, kEmptySentinel, kEmptySentinel, kEmptySentinel));
      }
      sum[0] = __fadd_rn(sum[0], part.x);
      sum[1] = __fadd_rn(sum[1], part.y);
      sum[2] = __fadd_rn(sum[2], part.z);
      sum[3] = __fadd_rn(sum[3], part.w);
    }
  }
  p.Store(tile, column_tile, lane, sum);
}

}  // namespace fulcrum::cuda

// The activations of a warp of q2_imma_kernel.cuh. Each warp quantises or copies the chunks that it
// multiplies by, so no barrier is needed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/q2/q2_imma_args.cuh"
#include "kernels/cuda/q2/q8_chunk.cuh"

namespace fulcrum::cuda {

// The chunks of one parity that belong to the warp's lanes (q2_imma_multiply.cuh). One pass
// quantises eight chunks, four lanes each. Values are loaded two passes ahead.
template <int kWarps, int kColumnTiles, int kSpread>
struct Q2OwnRows {
  const Q2ImmaArgs& p;
  const int warp, lane, parity, items;
  uint4 next[2] = {};

  __device__ __forceinline__ Q2OwnRows(const Q2ImmaArgs& args, int warp_, int lane_, int parity_)
      : p(args),
        warp(warp_),
        lane(lane_),
        parity(parity_),
        items((args.layout.half_chunks - warp_ + kWarps - 1) / kWarps * args.m) {}

  __device__ __forceinline__ uint4 Load(int item) const {
    if (item >= items) return make_uint4(0, 0, 0, 0);
    const int own = p.by_m(item), row = item - own * p.m;
    const int chunk = 2 * (warp + own * kWarps) + parity;
    const uint16_t* const at = p.rows + row * p.pitch + chunk * kQ2ChunkK + lane % 4 * 8;
    return *reinterpret_cast<const uint4*>(at);  // plain, see q8_rows.cu
  }
  __device__ __forceinline__ void LoadFirst() {
    next[0] = Load(lane / 4);
    next[1] = Load(lane / 4 + 8);
  }
  // Quantises into x, in the layout of QuantiseForTensorCores for one parity. The warp may read x
  // when this returns.
  __device__ __forceinline__ void Quantise(std::byte* x) {
#pragma unroll 1
    for (int first = 0; first < items; first += 8) {
      const uint4 eight = next[0];
      next[0] = next[1];
      const int item = first + lane / 4;
      next[1] = Load(item + 16);
      const Q8Part part = QuantisePart(eight);
      if (item < items) {
        const int own = p.by_m(item), column = (item - own * p.m) * kSpread;
        const int fragment = (warp + own * kWarps) * kColumnTiles + column / kQ8ColumnTile;
        const int in_tile = column % kQ8ColumnTile;
        std::byte* const to = x + fragment * kQ8FragmentBytes;
        reinterpret_cast<uint2*>(to)[4 * in_tile + lane % 4] = make_uint2(part.low, part.high);
        if (lane % 4 == 0) {
          float* const constants =
              reinterpret_cast<float*>(to + kQ8ConstantsAt) + in_tile / 2 * 4 + in_tile % 2;
          constants[0] = part.offset;
          constants[2] = part.scale;
        }
      }
    }
    __syncwarp();
  }

  // Starts copies of the parity's quantised chunks from `x`. Copies of 16 bytes by all warps
  // complete sooner than whole pieces by one thread.
  __device__ __forceinline__ void Bring(uint32_t to, const std::byte* x) const {
    constexpr int kChunkBytes = kColumnTiles * kQ8FragmentBytes, kParts = kChunkBytes / 16;
    const int end = (p.layout.half_chunks - warp + kWarps - 1) / kWarps * kParts;
#pragma unroll 4
    for (int i = lane; i < end; i += 32) {
      const int own = i / kParts;
      const int at = (warp + own * kWarps) * kChunkBytes + (i - own * kParts) * 16;
      AsyncCopy16(to + at, x + at);
    }
    AsyncCommit();
    __syncwarp();
  }
};

}  // namespace fulcrum::cuda

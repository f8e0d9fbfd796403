// Copies activations to shared memory, 16 bytes a thread. For few rows this is faster than tensor
// copies, which complete one after the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/fast_divmod.cuh"
#include "kernels/cuda/layout/layout.h"

namespace fulcrum::cuda {

// `m` rows of `blocks` blocks of K; rows are `pitch` elements apart.
struct RowCopies {
  const uint16_t* from;
  int64_t pitch;
  int m, blocks;
  int row_parts;  // pairs of blocks of a row; by_row_parts divides by it
  const FastDivmod& by_row_parts;
};

// Starts the copies, two blocks of a row per warp at a time, and closes a group of copies. `to`:
// halves of a block, kHalfX bytes each, with rows of 128 bytes, swizzled as tensor copies do it
// (tensor_map.h). Rows from `m` on are not written: they only affect columns that are not stored.
template <int kHalfX>
__device__ __forceinline__ void CopyRows(const RowCopies& rows, uint32_t to, int warp, int warps,
                                         int lane) {
  constexpr int kBlockX = 2 * kHalfX;
  const uint32_t own = to + lane / 16 * kBlockX + lane % 16 / 8 * kHalfX;
  const uint16_t* const from = rows.from + lane * 8;
  for (int i = warp; i < rows.m * rows.row_parts; i += warps) {
    const int row = rows.by_row_parts(i), part = i - row * rows.row_parts;
    if (part * 2 + lane / 16 >= rows.blocks) continue;
    AsyncCopy16(own + part * 2 * kBlockX + row * 128 + (lane ^ row) % 8 * 16,
                from + row * rows.pitch + part * 2 * kBlockK);
  }
  AsyncCommit();
}

}  // namespace fulcrum::cuda

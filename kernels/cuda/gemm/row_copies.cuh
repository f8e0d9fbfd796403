// Activations brought to shared memory by all threads, 16 bytes each: for few rows sooner there
// than by tensor copies, which come one after the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/fast_divmod.cuh"
#include "kernels/cuda/layout/layout.h"

namespace fulcrum::cuda {

// What is copied: `m` rows of `blocks` blocks of K, a row `pitch` elements from the next.
struct RowCopies {
  const uint16_t* from;
  int64_t pitch;
  int m, blocks;
  int row_parts;  // pairs of blocks of a row, of which by_row_parts divides
  const FastDivmod& by_row_parts;
};

// Asks for them, two blocks of a row a warp at a time, and ends a group of copies. `to`: halves of
// a block, kHalfX bytes each, rows of 128 bytes in them, swizzled as tensor copies do it
// (tensor_map.h). Of rows that there are not, nothing: what is in their place touches columns that
// nobody stores.
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

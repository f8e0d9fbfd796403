// Activations of the q2_0 arms quantised on the device, once for all weights of a call, and laid
// out as an arm reads them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/layout/q2_layout.h"

namespace fulcrum::cuda {

// For lanes that own chunks (q2_lanes.cuh). A row: [2 halves][chunks][16 bytes], then
// [chunks][offset, scale], F32. Of a chunk's 32 k half h has 16 h .. 16 h + 15. What an offset is:
// q8_chunk.cuh.
inline constexpr int kQ8LaneChunkBytes = 40;
__host__ __device__ constexpr int64_t Q8LaneRowBytes(int chunks) {
  return int64_t{chunks} * kQ8LaneChunkBytes;
}

// For tensor cores (q2_imma.cuh): [column group][even chunks, then odd ones][column tile of 8] of
// kQ8FragmentBytes:
// thread 4 g + t's two words of column g, k 8 t .. 8 t + 7 (the B operand of m16n8k32); then, for
// t = 0 .. 3, the offsets of columns 2 t and 2 t + 1 and their scales, F32.
inline constexpr int kQ8ColumnTile = 8;
inline constexpr int kQ8ConstantsAt = 256;
inline constexpr int kQ8FragmentBytes = 320;
__host__ __device__ constexpr int64_t Q8FragmentTileBytes(int chunks) {
  return int64_t{chunks} * kQ8FragmentBytes;
}

// 1.5 * 2^23: added to a float of small magnitude it leaves its integer, rounded to nearest even,
// in the low bits.
inline constexpr float kRounder = 12582912.0f;
inline constexpr int kRounderBits = 0x4b400000;
// 1.5 * 2^21, whose last place is a quarter: four times an integer, added to its bits, adds the
// integer to the float.
inline constexpr float kFineRounder = 3145728.0f;
inline constexpr int kFineRounderBits = 0x4a400000;
// For the BF16 magnitudes from kLeastRefinable on, one step of refinement from the rounded inverse
// of 127 gives the rounded quotient of each (q8_rows_test.cc tries them all).
inline constexpr float kInverse127 = 0x1.020408p-7f, kLeastRefinable = 0x1p-100f;
// From there on the remainders of quotients that are not rounded to zero are exact.
inline constexpr float kLeastRefinableScale = 0x1p-97f;

struct Q8Input {
  const uint16_t* rows = nullptr;  // BF16 [m][pitch], launch.h says what they are like
  int64_t pitch = 0;               // elements
  int m = 0;
  int chunks = 0;  // of a row
};
// `to`: device memory, 16-byte aligned. May be launched programmatically, as context says; the
// kernel after it may be as well, and then has to wait before it reads `to`.
cudaError_t QuantiseForLanes(const Q8Input& x, std::byte* to, const CudaContext& context);
// Row r is column r * spread; the other columns are zeros.
struct Q8Columns {
  int groups = 0;
  int tiles = 0;  // of a group
};
cudaError_t QuantiseForTensorCores(const Q8Input& x, int spread, const Q8Columns& columns,
                                   std::byte* to, const CudaContext& context);

}  // namespace fulcrum::cuda

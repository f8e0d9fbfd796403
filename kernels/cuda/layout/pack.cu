// Each thread writes, or unpacks, the 16 bytes that one thread of an arm reads.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/layout/layout.h"
#include "kernels/cuda/layout/pack.h"

namespace fulcrum::cuda {
namespace {

struct PackJob {
  const uint8_t* rows;
  int64_t row_bytes, row_count, k, blocks, units;
  uint4* out;
};

__device__ uint32_t Code(const PackJob& job, int64_t row, int64_t k) {
  return row < job.row_count && k < job.k ? job.rows[row * job.row_bytes + k] : 0;
}

__device__ uint32_t Bf16(const PackJob& job, int64_t row, int64_t k) {
  if (row >= job.row_count || k >= job.k) return 0;
  const uint8_t* const at = job.rows + row * job.row_bytes + k * 2;
  return at[0] | static_cast<uint32_t>(at[1]) << 8;
}

// Interleaves the codes of row g and row g + 8 in one 16-bit half: see gemm/fragment.cuh.
__device__ uint32_t Deal(uint32_t a, uint32_t b) {
  return (a >> 7) << 15 | (a & 0x7f) << 4 | (b >> 7) << 11 | (b & 0xf) | ((b >> 4) & 7) << 12;
}

__global__ void PackFp8(PackJob job, uint32_t* found_nan) {
  const int64_t unit = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (unit >= job.units) return;
  const int thread = static_cast<int>(unit % 32), quarter = static_cast<int>(unit / 32 % 4);
  const int64_t block = unit / 512 % job.blocks, panel = unit / 512 / job.blocks;
  const int64_t row = panel * kPanelRows + unit / 128 % kPanelTiles * kTileRows + thread / 4;
  bool nan = false;
  uint32_t words[4];
  for (int i = 0; i < 4; ++i) {
    const int64_t k = block * kBlockK + (2 * quarter + i / 2) * kStepK + thread % 4 * 2 + i % 2 * 8;
    words[i] = 0;
    for (int half = 0; half < 2; ++half) {
      const uint32_t a = Code(job, row, k + half), b = Code(job, row + 8, k + half);
      nan = nan || (a & 0x7f) == 0x7f || (b & 0x7f) == 0x7f;
      words[i] |= Deal(a, b) << (16 * half);
    }
  }
  job.out[unit] = make_uint4(words[0], words[1], words[2], words[3]);
  if (nan) *found_nan = 1;
}

__global__ void PackBf16(PackJob job) {
  const int64_t unit = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (unit >= job.units) return;
  const int thread = static_cast<int>(unit % 32), step = static_cast<int>(unit / 32 % 8);
  const int64_t block = unit / 1024 % job.blocks, panel = unit / 1024 / job.blocks;
  const int64_t first_row = panel * kPanelRows + unit / 256 % kPanelTiles * kTileRows;
  uint32_t words[4];
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first_row + thread / 4 + i / 2 * 8;
    const int64_t k = block * kBlockK + step * kStepK + thread % 4 * 2 + i % 2 * 8;
    words[i] = Bf16(job, row, k) | Bf16(job, row, k + 1) << 16;
  }
  job.out[unit] = make_uint4(words[0], words[1], words[2], words[3]);
}

// Each thread unpacks the 16 bytes of one thread of an arm.
__global__ void UnpackFp8(const uint4* codes, int64_t units, int64_t blocks, int64_t n,
                          uint8_t* rows) {
  const int64_t unit = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (unit >= units) return;
  const int thread = static_cast<int>(unit % 32), quarter = static_cast<int>(unit / 32 % 4);
  const int64_t block = unit / 512 % blocks, panel = unit / 512 / blocks;
  const int64_t row = panel * kPanelRows + unit / 128 % kPanelTiles * kTileRows + thread / 4;
  const uint4 v = codes[unit];
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 4; ++i) {
    const int64_t k = block * kBlockK + (2 * quarter + i / 2) * kStepK + thread % 4 * 2 + i % 2 * 8;
    for (int half = 0; half < 2; ++half) {
      const uint32_t h = words[i] >> (16 * half) & 0xffff;
      uint8_t* const at = rows + row * blocks * kBlockK + k + half;
      if (row < n) *at = static_cast<uint8_t>(h >> 15 << 7 | (h >> 4 & 0x7f));
      if (row + 8 < n) {
        at[8 * blocks * kBlockK] =
            static_cast<uint8_t>((h >> 11 & 1) << 7 | (h >> 12 & 7) << 4 | (h & 0xf));
      }
    }
  }
}

constexpr int kThreads = 256;
unsigned Grid(int64_t units) { return static_cast<unsigned>((units + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t PackTiles(const WeightSpec& spec, const std::byte* rows, int64_t first_row,
                      int64_t row_count, std::byte* codes, uint32_t* found_nan,
                      cudaStream_t stream) {
  const TileLayout layout(spec);
  const int64_t panels = (row_count + kPanelRows - 1) / kPanelRows;
  const int64_t panel_bytes = layout.blocks * layout.panel_block_bytes();
  const PackJob job{.rows = reinterpret_cast<const uint8_t*>(rows),
                    .row_bytes = spec.row_bytes(),
                    .row_count = row_count,
                    .k = spec.k,
                    .blocks = layout.blocks,
                    .units = panels * panel_bytes / 16,
                    .out = reinterpret_cast<uint4*>(codes + first_row / kPanelRows * panel_bytes)};
  if (spec.format == WeightFormat::kFp8Block128) {
    PackFp8<<<Grid(job.units), kThreads, 0, stream>>>(job, found_nan);
  } else {
    PackBf16<<<Grid(job.units), kThreads, 0, stream>>>(job);
  }
  return cudaGetLastError();
}

cudaError_t UnpackRows(const TileLayout& layout, const std::byte* codes, std::byte* rows,
                       cudaStream_t stream) {
  const int64_t units = layout.code_bytes() / 16;
  UnpackFp8<<<Grid(units), kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(codes), units,
                                                  layout.blocks, layout.n,
                                                  reinterpret_cast<uint8_t*>(rows));
  return cudaGetLastError();
}

}  // namespace fulcrum::cuda

// Packs rows of a q2_0 file into tiles (q2_layout.h). A thread writes the 16 bytes of one chunk of
// a pair of rows; the first of the chunks that share a scale writes the word of scales.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/layout/pack.h"
#include "kernels/cuda/layout/q2_layout.h"
#include "kernels/formats/q2_0.h"

namespace fulcrum::cuda {
namespace {

struct Q2PackJob {
  Q2Layout layout;
  const uint8_t* rows;
  int64_t row_bytes, row_count, units;
  int block_bytes;
  std::byte* tiles;
};

__global__ void PackQ2(Q2PackJob job) {
  const int64_t unit = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (unit >= job.units) return;
  const Q2Layout& layout = job.layout;
  const int chunk = static_cast<int>(unit % layout.chunks);
  const int64_t pair_of_all = unit / layout.chunks;
  const int pair = static_cast<int>(pair_of_all % kQ2Pairs);
  const int64_t tile = pair_of_all / kQ2Pairs;
  const int in_block = chunk & ((1 << layout.scale_shift) - 1);
  uint8_t codes[2][8] = {};
  uint32_t scales = 0;
  for (int half = 0; half < 2; ++half) {
    const int64_t row = tile * kQ2TileRows + pair + half * kQ2Pairs;
    if (row >= job.row_count) continue;
    const uint8_t* const block =
        job.rows + row * job.row_bytes + int64_t{chunk >> layout.scale_shift} * job.block_bytes;
    scales |= (block[0] | uint32_t{block[1]} << 8) << (16 * half);
    for (int i = 0; i < 8; ++i) codes[half][i] = block[2 + in_block * 8 + i];
  }
  std::byte* const to = job.tiles + tile * layout.TileBytes();
  const Q2ChunkWords words = Q2Interleave(codes[0], codes[1]);
  *reinterpret_cast<uint4*>(to + layout.CodesAt(pair, chunk)) =
      make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
  if (in_block == 0) *reinterpret_cast<uint32_t*>(to + layout.ScalesAt(pair, chunk)) = scales;
}

}  // namespace

cudaError_t PackQ2Tiles(const WeightSpec& spec, const std::byte* rows, int64_t first_row,
                        int64_t row_count, std::byte* resident, cudaStream_t stream) {
  const Q2Layout layout(spec);
  const int64_t tiles = (row_count + kQ2TileRows - 1) / kQ2TileRows;
  const Q2PackJob job{.layout = layout,
                      .rows = reinterpret_cast<const uint8_t*>(rows),
                      .row_bytes = spec.row_bytes(),
                      .row_count = row_count,
                      .units = tiles * kQ2Pairs * layout.chunks,
                      .block_bytes = Q2BlockBytes(spec.q2_block),
                      .tiles = resident + first_row / kQ2TileRows * layout.TileBytes()};
  constexpr int kThreads = 256;
  PackQ2<<<static_cast<unsigned>((job.units + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      job);
  return cudaGetLastError();
}

}  // namespace fulcrum::cuda

// Where columns are, and the walk over rows.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/q2_kernel.h"

#include "kernels/cpu/store.h"

namespace fulcrum::cpu {
namespace {

constexpr int kChunk = numerics::kQ2ChunkK;
constexpr int kVectorK = ChunkLayout::kLanes * kChunk;

}  // namespace

Q2Column Q2ColumnOf(const Job& job, int column) {
  const int64_t vectors = ChunkLayout(job.weight->spec()).vectors();
  const int64_t column_bytes = vectors * (kVectorK + 2 * ChunkLayout::kLanes * 4);
  std::byte* const at = job.columns + column * column_bytes;
  auto* const scales = reinterpret_cast<float*>(at + vectors * kVectorK);
  return {reinterpret_cast<const int8_t*>(at), scales,
          reinterpret_cast<const int32_t*>(scales + vectors * ChunkLayout::kLanes)};
}

void Q2Item(const Job& job, const Q2Kernel& kernel, int64_t item, ThreadScratch& scratch) {
  const ChunkLayout layout(job.weight->spec());
  const int64_t block = job.items.block(item);
  const int first = job.items.first_tile(item) * kTileRows;
  const int end = static_cast<int>(
      std::min<int64_t>(job.items.end_tile(item) * kTileRows, layout.rows - block * kBlockRows));
  Q2Column columns[kMaxDecodeRows];
  for (int c = 0; c < job.args.m; ++c) columns[c] = Q2ColumnOf(job, c);
  for (int r = first; r < end; ++r) {
    const int64_t row_index = block * kBlockRows + r;
    const Q2Row row = {job.weight->data() + row_index * layout.row_code_bytes(),
                       job.weight->HalfScales() + row_index * layout.scales_per_row, layout.chunks,
                       layout.row_code_bytes(), job.weight->spec().q2_block / kChunk};
    for (int run = 0; run < job.runs.count; ++run) {
      float sums[kMaxDecodeRows];
      const int width = job.runs.width(run), first_column = job.runs.first(run);
      kernel.by_columns[width - 1](row, columns + first_column, sums);
      for (int c = 0; c < width; ++c) {
        scratch.total[(first_column + c) * kBlockRows + r] = sums[c];
      }
    }
  }
  StoreBlock(job, block, first / kTileRows, (end + kTileRows - 1) / kTileRows, scratch.total);
}

}  // namespace fulcrum::cpu

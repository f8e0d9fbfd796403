// Activation chunks, the walk over rows, and the choice of kernel. SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/q2_kernel.h"

#include <cstring>

#include "hwy/targets.h"
#include "kernels/cpu/store.h"
#include "kernels/formats/q8_activation.h"

namespace fulcrum::cpu {
namespace {

constexpr int kChunk = numerics::kQ2ChunkK;
constexpr int kVectorK = ChunkLayout::kLanes * kChunk;
constexpr int64_t kVectorsPerItem = 4;

int64_t Vectors(const Job& job) { return ChunkLayout(job.weight->spec()).vectors(); }

}  // namespace

Q2Column Q2ColumnOf(const Job& job, int column) {
  const int64_t vectors = Vectors(job);
  const int64_t column_bytes = vectors * (kVectorK + 2 * ChunkLayout::kLanes * 4);
  std::byte* const at = job.columns + column * column_bytes;
  auto* const scales = reinterpret_cast<float*>(at + vectors * kVectorK);
  return {reinterpret_cast<const int8_t*>(at), scales,
          reinterpret_cast<const int32_t*>(scales + vectors * ChunkLayout::kLanes)};
}

int64_t Q2PrepareItems(const Job& job) {
  return job.args.m * ((Vectors(job) + kVectorsPerItem - 1) / kVectorsPerItem);
}

void Q2Prepare(const Job& job, int64_t item) {
  const auto column = static_cast<int>(item % job.args.m);
  const int64_t first = item / job.args.m * kVectorsPerItem;
  const int64_t end = std::min(first + kVectorsPerItem, Vectors(job));
  const Q2Column out = Q2ColumnOf(job, column);
  const int64_t k = job.weight->spec().k;
  const uint16_t* const x =
      static_cast<const uint16_t*>(job.args.activations) + column * job.args.activation_pitch;
  int8_t q[kVectorK];
  for (int64_t vector = first; vector < end; ++vector) {
    const auto count = static_cast<size_t>(std::min<int64_t>(kVectorK, k - vector * kVectorK));
    auto* const codes = const_cast<int8_t*>(out.codes) + vector * kVectorK;
    auto* const scales = const_cast<float*>(out.scales) + vector * ChunkLayout::kLanes;
    auto* const minus_sums = const_cast<int32_t*>(out.minus_sums) + vector * ChunkLayout::kLanes;
    std::memset(q, 0, sizeof(q));
    std::fill(scales, scales + ChunkLayout::kLanes, 0.0f);
    QuantizeQ8Row({x + vector * kVectorK, count}, {q, count}, {scales, count / kChunk});
    for (int chunk = 0; chunk < ChunkLayout::kLanes; ++chunk) {
      int sum = 0;
      for (int word = 0; word < 8; ++word) {
        for (int b = 0; b < 4; ++b) {
          const int8_t value = q[chunk * kChunk + word / 4 * 16 + b * 4 + word % 4];
          codes[(word * ChunkLayout::kLanes + chunk) * 4 + b] = value;
          sum += value;
        }
      }
      minus_sums[chunk] = -sum;
    }
  }
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

Q2Kernel ChooseQ2Kernel() {
#if HWY_ARCH_X86
  const int64_t targets = hwy::SupportedTargets();
  if (targets & HWY_AVX3_DL) return Q2KernelAvx512();
  if (targets & (HWY_AVX2 | HWY_AVX3)) return Q2KernelAvx2();
#endif
  return Q2KernelPortable();
}

}  // namespace fulcrum::cpu

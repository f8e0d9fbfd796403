// The q2_0 arm's parts: activations in chunks, the row kernels, and the choice among them by
// instruction set. The order of operations is order.h's; every kernel gives the same bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cpu/launch.h"

namespace fulcrum::cpu {

// Activations of one column as the kernels read them, vectors of 16 chunks:
// codes [vector][8 words of a chunk's 32 values][16 chunks] 4 x int8, the word order that of the
// weights' extraction: word h * 4 + e has values 16 h + 4 b + e, b = 0..3; then F32 scales
// [vector][16] and int32 -sum(q) [vector][16]. Chunks beyond K are zeros.
struct Q2Column {
  const int8_t* codes;
  const float* scales;
  const int32_t* minus_sums;
};
Q2Column Q2ColumnOf(const Job& job, int column);

// Where the kernels read one weight row.
struct Q2Row {
  const uint8_t* codes;
  const uint16_t* scales;  // FP16
  int64_t chunks;
  int64_t next_row_bytes;  // distance of the next row's codes, for prefetching
  int chunks_per_scale;    // 2 or 4
};

// sums[c] = row times column c, before the "+ 0" that ends every result.
using Q2RowKernel = void (*)(const Q2Row& row, const Q2Column* columns, float* sums);
struct Q2Kernel {
  const Q2RowKernel* by_columns;  // [columns - 1]
  int max_columns;
};
Q2Kernel ChooseQ2Kernel();
Q2Kernel Q2KernelPortable();
Q2Kernel Q2KernelAvx2();    // needs AVX2, FMA, F16C
Q2Kernel Q2KernelAvx512();  // needs AVX-512 F, BW, VL, VNNI

inline constexpr int64_t kQ2VectorsPerItem = 4;  // of one column
int64_t Q2PrepareItems(const Job& job);
void Q2Prepare(const Job& job, int64_t item);
void Q2Item(const Job& job, const Q2Kernel& kernel, int64_t item, ThreadScratch& scratch);

}  // namespace fulcrum::cpu

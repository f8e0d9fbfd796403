// Tensor maps of activations and codes. The driver's function is found at run time, so nothing
// links to the driver.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>

namespace fulcrum::cuda {

inline constexpr int kBoxBytes = 128;  // of a row: the width of the swizzle
inline constexpr int kBoxK = kBoxBytes / 2;

// [m][pitch] BF16, boxes of kBoxK elements by `box_rows` rows; rows beyond m read as zeros. rows:
// device memory, 16-byte aligned; pitch a multiple of 8 elements, at least k. Encoding is cheap
// enough for every launch.
cudaError_t DescribeRows(const uint16_t* rows, int m, int64_t k, int64_t pitch, int box_rows,
                         CUtensorMap* map);

// The same rows as slices of kBoxK elements, [K / kBoxK][m][kBoxK], in boxes of `box_slices` whole
// slices of `box_rows` rows; rows and slices beyond the end read as zeros. k a multiple of kBoxK.
cudaError_t DescribeSlices(const uint16_t* rows, int m, int64_t k, int64_t pitch, int box_rows,
                           int box_slices, CUtensorMap* map);

// [rows][k] bytes, k a multiple of 128, in boxes of 128 bytes by `box_rows` rows; rows beyond the
// end read as zeros.
cudaError_t DescribeCodes(const std::byte* codes, int64_t rows, int64_t k, int box_rows,
                          CUtensorMap* map);

}  // namespace fulcrum::cuda

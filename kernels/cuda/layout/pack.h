// Packs rows of a weight file into the resident layout, on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/layout/layout.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::cuda {

// rows: device memory, `row_count` file rows of spec.row_bytes() bytes each, the first being row
// `first_row` (a multiple of 64) of the weight. Writes their tiles into `codes` (device,
// TileLayout(spec).code_bytes()), padding included when the rows are the last ones. found_nan
// (device): set to 1 when an fp8 code among them is NaN, else left alone. fp8 and bf16 only.
cudaError_t PackTiles(const WeightSpec& spec, const std::byte* rows, int64_t first_row,
                      int64_t row_count, std::byte* codes, uint32_t* found_nan,
                      cudaStream_t stream);

// q2_0: the same into tiles of q2_layout.h at `resident` (device memory, zeroed by the caller,
// Q2Layout(spec) tiles). first_row: a multiple of 16.
cudaError_t PackQ2Tiles(const WeightSpec& spec, const std::byte* rows, int64_t first_row,
                        int64_t row_count, std::byte* resident, cudaStream_t stream);

// Unpacks the codes of a packed fp8 weight into rows [N][blocks * 128] (device memory).
cudaError_t UnpackRows(const TileLayout& layout, const std::byte* codes, std::byte* rows,
                       cudaStream_t stream);

}  // namespace fulcrum::cuda

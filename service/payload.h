// From the bytes of a request to BF16 rows: the one host copy between the socket and the launch
// slot. Dense BF16 is a plain copy of each received slice; F16 and F32 are rounded (nearest even)
// on the way. Sizes were checked by admission.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/types.h"
#include "service/project_codec.h"

namespace fulcrum::service {

// How the activations of a checked request lie in its payload.
struct PayloadLayout {
  DType type = DType::kBf16;
  int64_t rows = 0;
  int64_t k = 0;
  int64_t pitch = 0;  // elements from one row to the next, >= k
};

// Writes [rows, k] BF16, tightly packed. The pieces hold at least (rows - 1) * pitch + k elements;
// an element may lie across two of them.
void GatherBf16(const Pieces& pieces, const PayloadLayout& layout, uint16_t* out);

}  // namespace fulcrum::service

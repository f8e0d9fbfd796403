// The end of every CPU result, for code that is not itself compiled per instruction set.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/launch.h"

namespace fulcrum::cpu {

// Writes rows of tiles [first_tile, end_tile) of a block from total [column][128 rows]: adds +0,
// makes NaN canonical, rounds to the output type. Nothing outside [0, N) is touched.
void StoreBlock(const Job& job, int64_t block, int first_tile, int end_tile, const float* total);

}  // namespace fulcrum::cpu

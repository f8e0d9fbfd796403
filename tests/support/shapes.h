// Shapes that arms are tested on: ragged ones that hit every remainder, and full-size ones of which
// rows are sampled.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/types.h"

namespace fulcrum::test {

struct Shape {
  int64_t n = 0;
  int64_t k = 0;
  int q2_block = 64;  // q2_0 only
};

inline constexpr int64_t kRaggedN[] = {1, 3, 8, 16, 127, 128, 129, 130, 384};
inline constexpr int64_t kRaggedK[] = {1, 8, 16, 64, 127, 128, 192, 576, 2560, 2624};

// Every ragged (n, k) the format can have; q2_0 in both block geometries.
inline std::vector<Shape> RaggedShapes(WeightFormat format) {
  std::vector<Shape> shapes;
  for (const int64_t n : kRaggedN) {
    for (const int64_t k : kRaggedK) {
      if (format != WeightFormat::kQ2_0) {
        shapes.push_back({n, k});
        continue;
      }
      for (const int block : {64, 128}) {
        if (k % block == 0) shapes.push_back({n, k, block});
      }
    }
  }
  return shapes;
}

// Enough rows to occupy a device, K of real models: too large for a whole reference product.
inline std::vector<Shape> BigShapes(WeightFormat format) {
  std::vector<Shape> shapes;
  for (const int64_t k : {5120, 6144, 17408}) {
    shapes.push_back({1536 + 40, k});
    if (format == WeightFormat::kQ2_0) shapes.push_back({640, k, 128});
  }
  return shapes;
}

}  // namespace fulcrum::test

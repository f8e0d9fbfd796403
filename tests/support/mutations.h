// Known-bad variants of a correct product: the faults a kernel is likely to have. The check that
// passes the correct product must reject every one of them, or it proves nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/formats/bf16.h"
#include "kernels/formats/q2_0.h"
#include "kernels/types.h"
#include "tests/support/random_weights.h"

namespace fulcrum::test {

// Computes [m, n] in the output type under test, widened to float.
using ProductFn =
    std::function<std::vector<float>(const WeightSource& weight, std::span<const uint16_t> x)>;

struct KnownBad {
  std::string name;
  std::vector<float> product;
};

inline float Bf16OrdinalOff(float value, int by) {
  return Bf16ToF32(static_cast<uint16_t>(F32ToBf16(value) + by));
}

// The weight with every row's scales moved by one block along K: block b takes the scale of b + 1,
// the last that of the first. False for a weight that has no second scale in a row.
inline bool MoveScales(MemoryWeight& weight) {
  const WeightSpec& spec = weight.spec();
  const auto rotate_rows = [](auto* data, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; ++r) {
      std::rotate(data + r * cols, data + r * cols + 1, data + (r + 1) * cols);
    }
  };
  if (spec.format == WeightFormat::kFp8Block128 && spec.scale_cols() > 1) {
    rotate_rows(weight.mutable_scales().data(), spec.scale_rows(), spec.scale_cols());
    return true;
  }
  if (spec.format == WeightFormat::kQ2_0 && spec.k > spec.q2_block) {
    const int64_t block_bytes = Q2BlockBytes(spec.q2_block), blocks = spec.k / spec.q2_block;
    std::vector<uint16_t> d(static_cast<size_t>(spec.n * blocks));
    std::byte* const bytes = weight.mutable_rows().data();
    for (size_t b = 0; b < d.size(); ++b) std::memcpy(&d[b], bytes + b * block_bytes, 2);
    rotate_rows(d.data(), spec.n, blocks);
    for (size_t b = 0; b < d.size(); ++b) std::memcpy(bytes + b * block_bytes, &d[b], 2);
    return true;
  }
  return false;
}

// Every fault that the weight's shape and the output type allow, each applied to the whole product
// of x[m, k]: needs m >= 2 and n >= 2. `product` must be correct.
inline std::vector<KnownBad> KnownBadProducts(const MemoryWeight& weight,
                                              std::span<const uint16_t> x, int m, DType output,
                                              const ProductFn& product) {
  const int64_t n = weight.spec().n, k = weight.spec().k;
  const std::vector<float> good = product(weight, x);
  std::vector<KnownBad> bad;

  if (output == DType::kBf16) {  // in F32 three values are far below what order alone changes
    std::vector<float> off = good;
    auto largest = std::max_element(off.begin(), off.end(),
                                    [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    *largest = Bf16OrdinalOff(*largest, -3);
    bad.push_back({"one element off by 3 values", std::move(off)});
  }

  std::vector<float> copied = good;
  std::copy_n(good.begin(), n, copied.begin() + n);
  bad.push_back({"row 1 copied from row 0", std::move(copied)});

  std::vector<float> shifted(good.size());
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t col = 0; col < n; ++col) shifted[row * n + col] = good[row * n + (col + 1) % n];
  }
  bad.push_back({"columns shifted by one", std::move(shifted)});

  std::vector<uint16_t> short_x(x.begin(), x.end());
  for (int64_t row = 0; row < m; ++row) short_x[row * k + k - 1] = 0;
  bad.push_back({"last k dropped", product(weight, short_x)});

  MemoryWeight moved = weight;
  if (MoveScales(moved)) bad.push_back({"scales moved by one block", product(moved, x)});
  return bad;
}

}  // namespace fulcrum::test

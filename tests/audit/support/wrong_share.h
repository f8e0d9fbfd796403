// What share of an arm's outputs a fault makes wrong, counted over rows that calls then draw from:
// from it follows within how many audited outputs the fault must be found.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <set>
#include <vector>

#include "tests/support/arm_cases.h"
#include "tests/support/random_weights.h"

namespace fulcrum::test {

// Rows of activations, and the products with all of them.
class RowPool {
 public:
  static constexpr int kRows = 256;

  RowPool(int64_t k, uint64_t seed)
      : k_(k), rows_(RandomActivations(kRows, k, ActivationKind::kGaussian, seed)) {}

  // The next `count` rows, around and around, so that calls use all of them alike.
  std::vector<uint16_t> Next(int count) {
    std::vector<uint16_t> out;
    for (int i = 0; i < count; ++i, next_ = (next_ + 1) % kRows) {
      const auto row = rows_.begin() + next_ * k_;
      out.insert(out.end(), row, row + k_);
    }
    return out;
  }
  // BF16 outputs [rows, n] of the first `rows`; empty when a launch failed.
  std::vector<std::byte> Product(Backend& backend, const Arm& arm, const ResidentWeight& weight,
                                 int rows = kRows) const {
    std::vector<std::byte> all;
    for (int row = 0; row < rows; row += kMaxDecodeRows) {
      const auto out =
          RunPoisoned(backend, arm, weight,
                      std::span(rows_).subspan(static_cast<size_t>(row * k_),
                                               static_cast<size_t>(kMaxDecodeRows * k_)),
                      kMaxDecodeRows, DType::kBf16);
      EXPECT_TRUE(out.ok()) << arm.name << ": " << out.status();
      if (!out.ok()) return {};
      all.insert(all.end(), out->begin(), out->end());
    }
    return all;
  }

 private:
  const int64_t k_;
  const std::vector<uint16_t> rows_;
  int64_t next_ = 0;
};

struct Difference {
  std::set<int64_t> columns;
  int64_t outputs = 0;  // that differ
  double share = 0;     // of all
};
inline Difference Differing(std::span<const std::byte> right, std::span<const std::byte> wrong,
                            int64_t n) {
  Difference out;
  const size_t count = std::min(right.size(), wrong.size()) / 2;
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(right.data() + 2 * i, wrong.data() + 2 * i, 2) == 0) continue;
    out.columns.insert(static_cast<int64_t>(i) % n);
    ++out.outputs;
  }
  if (count > 0) out.share = static_cast<double>(out.outputs) / static_cast<double>(count);
  return out;
}

// Audited outputs, each drawn anew from all, of which one is a wrong one but for one time in 10^6.
// Rows of small batches are drawn more often than those of large ones: a fifth of the share is
// allowed for it.
inline int64_t FoundWithin(double share) {
  return static_cast<int64_t>(std::ceil(std::log(1e-6) / std::log1p(-0.8 * share)));
}

}  // namespace fulcrum::test

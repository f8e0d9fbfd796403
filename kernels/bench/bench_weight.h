// Made-up weights for the benchmark: cheap to make at full size, every code in use, no NaN.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/weights/weight_source.h"

namespace fulcrum::bench {

// Rows are a function of (seed, row), so nothing is kept and any row can be read again.
class BenchWeight : public WeightSource {
 public:
  BenchWeight(WeightSpec spec, uint64_t seed);
  const WeightSpec& spec() const override { return spec_; }
  std::span<const float> scales() const override { return scales_; }
  absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override;
  std::string origin() const override { return "benchmark"; }

 private:
  WeightSpec spec_;
  uint64_t seed_;
  std::vector<float> scales_;
};

// [m][pitch] BF16 from -1 to 1, the same for the same m, k and pitch; zeros from k on in every row.
std::vector<uint16_t> BenchActivations(int m, int64_t k, int64_t pitch);

}  // namespace fulcrum::bench

// Activations and expected values: raw little-endian files whose extension is their type, or random
// rows from a seed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/types.h"

namespace fulcrum::cli {

struct Activations {
  std::string bytes = {};  // [rows, k] row-major in `type`
  DType type = DType::kBf16;
  int64_t rows = 0;
};

absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status WriteFile(const std::string& path, const std::string& bytes);

// path ends in .bf16, .f16 or .f32; the size must be whole rows of `k`, at least one.
absl::StatusOr<Activations> ReadActivations(const std::string& path, int64_t k);
// The same by the file's name and size alone: `bytes` stays empty.
absl::StatusOr<Activations> MeasureActivations(const std::string& path, int64_t k);

// BF16, roughly normal with standard deviation 1; a function of the seed alone.
Activations RandomActivations(uint64_t seed, int64_t rows, int64_t k);

// As the node converts them: BF16 bits, nearest even.
std::vector<uint16_t> ToBf16(const Activations& activations);

// A .f64 file of exactly `count` values.
absl::StatusOr<std::vector<double>> ReadF64(const std::string& path, int64_t count);

}  // namespace fulcrum::cli

// A bundle: one product that came out wrong on a node, with all that it takes to run it again
// elsewhere but the weights, which the hash names. A file:
//   "fulcrum bundle 1\n", one line of JSON, then the activations and the outputs as raw
//   little-endian values.
// The JSON carries the CRC-32 of the raw part.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/types.h"

namespace fulcrum::numerics {

struct Bundle {
  std::string found_by = {};  // "shadow", "audit"
  std::string detail = {};    // what was wrong, one line
  std::string time = {}, node = {}, device = {};
  std::string shard = {}, shard_hash = {};
  uint64_t shard_version = 0;  // of the node's shard; 0 in bundles that do not say
  std::string origin = {},
              tensor = {};  // of the weight: a path or "synthetic:SEED", and its name there
  Family family = Family::kOther;
  WeightFormat format = WeightFormat::kFp8Block128;
  int64_t n = 0, k = 0;
  std::string arm = {};  // that ran
  NumericsClass numerics = NumericsClass::kExact;
  Step step = Step::kDecode;
  DType output_type = DType::kBf16;
  uint64_t lever_epoch = 0;
  int rows = 0;
  int64_t column = 0, columns = 0;         // the outputs kept: columns [column, column + columns)
  std::vector<uint16_t> activations = {};  // BF16 [rows, k]
  std::vector<std::byte> outputs = {};     // [rows, columns] of output_type, as served
};

std::string EncodeBundle(const Bundle& bundle);
// DATA_LOSS for what is not a whole bundle, saying what is missing.
absl::StatusOr<Bundle> DecodeBundle(const std::string& bytes);

absl::Status WriteBundle(const Bundle& bundle, const std::string& path);  // never replaces a file
absl::StatusOr<Bundle> ReadBundle(const std::string& path);

}  // namespace fulcrum::numerics

// What a start will load, decided from headers alone: which weights the configured models have,
// which tensors are skipped, on which device each weight goes, and everything that speaks against
// it. A start makes the plan before it listens and `--validate-config` makes the same one; loading
// it is shard_loader.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/types.h"
#include "kernels/weights/skipped_tensor.h"
#include "kernels/weights/tensor_catalog.h"
#include "kernels/weights/weight_source.h"
#include "service/config.h"

namespace fulcrum::service {

// A tensor of a file, possibly a part of it (half-open ranges, an end of 0 = the whole extent).
struct WeightFileRef {
  std::string path, tensor;
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 0;
};

// One shard to be loaded. Its file is open.
struct PlannedShard {
  std::string name;  // models/{model}/shards/{shard}
  Family family = Family::kOther;
  std::string layer;  // weights of one layer of one model share a device; "" = none
  std::shared_ptr<const WeightSource> source;
  std::string device;  // what the configuration asks for; "" = any
  std::string placed;  // where the plan puts it; "" before PlaceModels
  std::string expect_hash;
  bool allow_nan = false;
  std::string place;  // where it is configured, for errors
};

struct LoadPlan {
  struct Skips {
    std::string model;
    std::vector<SkippedTensor> tensors;  // of its checkpoint, with reasons
  };
  std::vector<PlannedShard> shards;
  std::vector<Skips> skips;           // models with any
  std::vector<std::string> problems;  // each a sentence that begins with its place and name

  // INVALID_ARGUMENT with every problem, one a line.
  absl::Status status() const;
};

// Opens what the models of a checked configuration name.
LoadPlan OpenModels(const Config& config);

// Gives every shard its device, or adds the problem that there is no such device or no room.
void PlaceModels(const std::vector<Backend*>& devices, LoadPlan& plan);

// A tensor named explicitly, cut as asked and checked as far as headers and scales say.
absl::StatusOr<std::shared_ptr<const WeightSource>> OpenExplicit(const TensorCatalog& catalog,
                                                                 const WeightFileRef& file,
                                                                 bool allow_nan);

}  // namespace fulcrum::service

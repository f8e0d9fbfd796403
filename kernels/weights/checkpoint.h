// Imports a checkpoint: finds the files, maps tensor names to shards, pairs fp8 weights with their
// scale grids. Accepts a safetensors or GGUF file, a safetensors index, or a directory with an
// index, with several safetensors files, or with one GGUF model. Nothing is guessed: what cannot be
// served, or could be read in two ways, is listed with the reason.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/named_weight.h"
#include "kernels/weights/tensor_catalog.h"

namespace fulcrum {

struct SkippedTensor {
  std::string tensor;
  std::string reason;
};

struct Checkpoint {
  std::vector<NamedWeight> shards;     // by layer, then name; lm_head and other unlayered ones last
  std::vector<SkippedTensor> skipped;  // in the catalog's order
};

// A projection that is clearly meant to be served but is broken (no scale grid, wrong grid shape)
// is an error, not a skip. NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS.
absl::StatusOr<Checkpoint> ImportCheckpoint(const std::string& path);

// One tensor by its name in the file, whatever its role: an explicit configuration's way in.
// NOT_FOUND names the path and tensors with a similar name.
absl::StatusOr<std::shared_ptr<const WeightSource>> OpenTensor(const std::string& path,
                                                               std::string_view tensor);

// Opens one tensor of a catalog that is already read.
absl::StatusOr<std::shared_ptr<const WeightSource>> OpenTensor(const TensorCatalog& catalog,
                                                               std::string_view tensor);

// What import decides about one tensor: a shard, a skip, or (status) an error.
struct TensorDecision {
  std::string skip;    // empty when it becomes a shard
  NamedWeight weight;  // source is set when skip is empty
};
std::vector<absl::StatusOr<TensorDecision>> DecideAll(const TensorCatalog& catalog);

}  // namespace fulcrum

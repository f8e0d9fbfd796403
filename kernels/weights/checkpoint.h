// Imports a checkpoint: finds the files, maps tensor names to shards, pairs fp8 weights with their
// scale grids. Accepts a safetensors or GGUF file, a safetensors index, or a directory with an
// index, with several safetensors files, or with one GGUF model. Nothing is guessed: what cannot be
// served, or could be read in two ways, is listed with the reason. The rules are verdict.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/named_weight.h"
#include "kernels/weights/skipped_tensor.h"
#include "kernels/weights/tensor_catalog.h"

namespace fulcrum {

struct Checkpoint {
  std::vector<NamedWeight> shards;     // by layer, then name; lm_head and other unlayered ones last
  std::vector<SkippedTensor> skipped;  // in the catalog's order
};

// Headers and scale grids are read, weights are not. `allow_nan`: scales that are not finite are
// served. NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT, DATA_LOSS.
absl::StatusOr<Checkpoint> ImportCheckpoint(const std::string& path, bool allow_nan = false);

// One tensor by its name in the file, whatever its role: an explicit configuration's way in. What
// it is served as, whole or in slices, has still to pass CheckServable (weight_source.h).
// NOT_FOUND names the path and tensors with a similar name, INVALID_ARGUMENT says why the tensor
// cannot be served.
absl::StatusOr<std::shared_ptr<const WeightSource>> OpenTensor(const std::string& path,
                                                               std::string_view tensor);

// Opens one tensor of a catalog that is already read.
absl::StatusOr<std::shared_ptr<const WeightSource>> OpenTensor(const TensorCatalog& catalog,
                                                               std::string_view tensor);

}  // namespace fulcrum
